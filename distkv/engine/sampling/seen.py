"""Which tokens requests have so far, where their logits lie: penalties look at all of them for every token.

A request has a row of two tables for as long as it lives, and only what came since it was looked at last is added.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from distkv.engine.sampling.history import Histories

NONE = 0
"""The row that is always empty, for sequences without penalties."""
_FIRST_ROWS = 8


@dataclass(slots=True)
class _Row:
    """end: so many positions are counted. prompt_tokens, rewritten: as they were then."""

    index: int
    end: int
    prompt_tokens: int
    rewritten: int


@dataclass(slots=True)
class News:
    """What has come. empty: rows to be emptied first. seen, output: places in the tables, row · vocab + token, of all
    new tokens, and of those of outputs, each as often as it came."""

    empty: list[int] = field(default_factory=list)
    seen: list[np.ndarray[tuple[int], np.dtype[np.int64]]] = field(default_factory=list)
    output: list[np.ndarray[tuple[int], np.dtype[np.int64]]] = field(default_factory=list)


class SeenTokens:
    """seen: bool [rows, vocab], who has a token. counts: int32 [rows, vocab], how often its output has it. Row NONE has
    none. Both are on the device, and None before the first request that needs them."""

    def __init__(self, histories: Histories, vocab_size: int, place: torch.device) -> None:
        self.seen: Tensor | None = None
        self.counts: Tensor | None = None
        self._histories, self._vocab_size, self._place = histories, vocab_size, place
        self._rows: dict[str, _Row] = {}
        self._free: list[int] = []

    def row(self, request_id: str, end: int, prompt_tokens: int, news: News) -> int:
        """The row of a request whose positions below `end` count; what is missing there is added to `news`. Raises
        MalformedMessage when the history does not reach so far."""
        ids = self._histories.read(request_id, end).numpy()
        rewritten = self._histories.rewritten(request_id)
        row = self._rows.get(request_id)
        if row is None:
            row = self._rows[request_id] = _Row(self._take(), 0, prompt_tokens, rewritten)
            news.empty.append(row.index)
        elif row.end > end or (row.prompt_tokens, row.rewritten) != (prompt_tokens, rewritten):
            row.end, row.prompt_tokens, row.rewritten = 0, prompt_tokens, rewritten
            news.empty.append(row.index)
        if row.end < end:
            first = row.index * self._vocab_size
            news.seen.append(ids[row.end :] + first)
            news.output.append(ids[max(row.end, prompt_tokens) :] + first)
            row.end = end
        return row.index

    def update(self, empty: Tensor | None, seen: Tensor | None, output: Tensor | None) -> None:
        """Take over `News`, as tensors on the device."""
        assert self.seen is not None and self.counts is not None
        if empty is not None:
            self.seen.index_fill_(0, empty, False)
            self.counts.index_fill_(0, empty, 0)
        if seen is not None:
            self.seen.view(-1).index_fill_(0, seen, True)
        if output is not None:
            self.counts.view(-1).index_add_(0, output, torch.ones_like(output, dtype=torch.int32))

    def forget(self, request_ids: Iterable[str]) -> None:
        """Their rows are free for others."""
        self._free += [row.index for name in request_ids if (row := self._rows.pop(name, None)) is not None]

    def _take(self) -> int:
        if not self._free:
            self._grow()
        return self._free.pop()

    def _grow(self) -> None:
        """Twice the rows."""
        before = 0 if self.seen is None else len(self.seen)
        rows = max(_FIRST_ROWS, 2 * before)
        seen = torch.zeros(rows, self._vocab_size, dtype=torch.bool, device=self._place)
        counts = torch.zeros(rows, self._vocab_size, dtype=torch.int32, device=self._place)
        if self.seen is not None and self.counts is not None:
            seen[:before], counts[:before] = self.seen, self.counts
        self.seen, self.counts = seen, counts
        self._free += range(rows - 1, max(before, NONE + 1) - 1, -1)
