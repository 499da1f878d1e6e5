"""Which partials make up each row of a batch, and their merge: once for all sequences, not one by one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from distkv.engine.attention.exchange import Exchange
from distkv.kernels import Backend, Partial

Rows = slice | Tensor
"""Rows of a tensor; a slice, which needs no copy, where they follow each other."""


@dataclass(slots=True)
class Pick:
    """Rows of one source of partials, or of all of them one after another and an empty row behind: source None."""

    source: int | None
    rows: Rows


@dataclass(slots=True)
class Merging:
    """rows: of the batch that have partials of peers. ranks: the first partial of each of them, the second, and so on.

    Sources are the local partials of `rows`, then the answer of each exchange of the batch. Each row has its partials
    in span order, the local one at the place of its first token: results do not depend on who answered first.
    """

    rows: Rows
    ranks: list[Pick]

    def merge(self, local: Partial, answers: Sequence[Partial], backend: Backend) -> Tensor:
        """Attention over all keys, float32 [N, Hq, D]. local: of all rows of the batch; it may be overwritten."""
        out, lse = local
        sources = [(out[self.rows], lse[self.rows]), *answers]
        everything: Partial | None = None
        partials: list[Partial] = []
        for rank in self.ranks:
            if rank.source is None:
                everything = everything or _joined(sources)
            outs, lses = everything if rank.source is None and everything else sources[rank.source or 0]
            partials.append((outs[rank.rows], lses[rank.rows]))
        merged = backend.merge(partials)[0]
        if self.rows == slice(0, len(out)):
            return merged
        out[self.rows] = merged
        return out


def merging_of(seqs: Sequence[tuple[slice, list[tuple[Exchange, int]], int]], exchanges: Sequence[Exchange]) -> Merging:
    """seqs: of each sequence with spans on peers its rows of the batch, which entries of which exchanges answer it, in
    span order, and how many of these precede its local part. Index tensors are on the host."""
    num_local = sum(rows.stop - rows.start for rows, _, _ in seqs)
    ends = list(accumulate((exchange.answer_rows for exchange in exchanges), initial=num_local))
    place = {id(exchange): start for exchange, start in zip(exchanges, ends, strict=False)}
    runs: list[list[int]] = []
    local = 0
    for rows, remote, local_place in seqs:
        starts = [place[id(exchange)] + exchange.first_row(entry) for exchange, entry in remote]
        starts.insert(local_place, local)
        runs.append(starts)
        local += rows.stop - rows.start
    counts = [rows.stop - rows.start for rows, _, _ in seqs]
    ranks = [
        np.concatenate([
            np.arange(starts[rank], starts[rank] + count) if rank < len(starts) else np.full(count, ends[-1])
            for starts, count in zip(runs, counts, strict=True)
        ])
        for rank in range(max(map(len, runs)))
    ]  # fmt: skip
    own_rows = np.concatenate([np.arange(rows.start, rows.stop) for rows, _, _ in seqs])
    return Merging(rows_of(own_rows), [_pick(rank, [0, *ends]) for rank in ranks])


def rows_of(index: NDArray[np.int64]) -> Rows:
    """A slice where the rows follow each other."""
    first, last = int(index[0]), int(index[-1])
    if last - first + 1 == len(index) and bool((np.diff(index) == 1).all()):
        return slice(first, last + 1)
    return torch.from_numpy(index)


def _pick(index: NDArray[np.int64], starts: list[int]) -> Pick:
    """starts: of each source among all of them, and where the last one ends."""
    rows = rows_of(index)
    if isinstance(rows, slice):
        for source, (start, end) in enumerate(pairwise(starts)):
            if start <= rows.start and rows.stop <= end:
                return Pick(source, slice(rows.start - start, rows.stop - start))
        return Pick(None, torch.from_numpy(index))
    return Pick(None, rows)


def _joined(sources: Sequence[Partial]) -> Partial:
    outs, lses = zip(*sources, strict=True)
    nothing = outs[0].new_zeros(1, *outs[0].shape[1:]), lses[0].new_full((1, *lses[0].shape[1:]), -torch.inf)
    return torch.cat((*outs, nothing[0])), torch.cat((*lses, nothing[1]))
