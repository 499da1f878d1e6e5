"""The tokens of requests whose penalties look at them. A Step brings only its own ids; sampling needs all of them."""

from __future__ import annotations

from array import array

import numpy as np
import torch
from torch import Tensor

from distkv.errors import MalformedMessage


class Histories:
    """Token ids by position, per request.

    Writing a position again, after a preemption, a loss or for a new request of the same name, replaces what was there.
    Only positions below the one to be sampled are ever read, so what an earlier request left behind does no harm.
    """

    def __init__(self) -> None:
        self._ids: dict[str, Tensor] = {}
        self._lengths: dict[str, int] = {}
        self._rewritten: dict[str, int] = {}

    def write(self, request_id: str, start: int, token_ids: array[int]) -> None:
        """The request has these ids from position `start` on. Raises MalformedMessage when that leaves a gap."""
        end, length = start + len(token_ids), self._lengths.get(request_id, 0)
        if start > length:
            raise MalformedMessage(f"{request_id}: a history of {length} tokens cannot go on at {start}")
        ids = self._ids.get(request_id, torch.empty(0, dtype=torch.int64))
        if len(ids) < end:
            # Doubling, so that a token costs the same however long the request is.
            ids = torch.cat([ids, torch.zeros(max(end - len(ids), len(ids)), dtype=torch.int64)])
            self._ids[request_id] = ids
        new = torch.from_numpy(np.asarray(token_ids)).long()
        if start < length and not ids[start : min(end, length)].equal(new[: length - start]):
            self._rewritten[request_id] = self.rewritten(request_id) + 1
        ids[start:end] = new
        self._lengths[request_id] = max(length, end)

    def read(self, request_id: str, end: int) -> Tensor:
        """int64 [end]: the ids at positions below `end`. Raises MalformedMessage when not all were written."""
        if end > (length := self._lengths.get(request_id, 0)):
            raise MalformedMessage(f"{request_id}: a history of {length} tokens ends before {end}")
        return self._ids[request_id][:end]

    def rewritten(self, request_id: str) -> int:
        """How often a write put other ids where some were."""
        return self._rewritten.get(request_id, 0)

    def forget(self, request_id: str) -> None:
        """Drop what is kept of a request."""
        self._rewritten.pop(request_id, None)
        self._ids.pop(request_id, None)
        self._lengths.pop(request_id, None)
