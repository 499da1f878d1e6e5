"""Which partials make up each row of a microbatch, and their merge: once for all sequences, not one by one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from distkv.kernels import Backend, Partial
from distkv.kernels.exchange import MergeRun
from distkv.wire.messages.data import AttendPlan

Rows = slice | Tensor
"""Rows of a tensor; a slice, which needs no copy, where they follow each other."""

SeqParts = tuple[slice, list[tuple[int, int]], int]
"""A sequence with spans on peers: its rows of the microbatch, the (plan, entry) of each of its remote partials in span
order, and how many of these precede its local one."""


@dataclass(frozen=True, slots=True)
class Gather:
    """Rows of one source of partials, or of all sources one after another with an empty row behind: source None."""

    source: int | None
    rows: Rows


@dataclass(frozen=True, slots=True)
class MergePlan:
    """rows: of the microbatch that have partials of peers. parts: the first partial of each of them, the second, and
    so on; none without peers.

    Sources are the local partials of `rows`, then the partials from each creditor. Each row has its partials in span
    order, the local one at the place of its first token: results do not depend on whose partials came first.
    """

    rows: Rows
    parts: tuple[Gather, ...]

    def all_rows(self) -> tuple[Rows, ...]:
        """`rows` and those of each part."""
        return self.rows, *(part.rows for part in self.parts)

    def with_rows(self, rows: Rows, *part_rows: Rows) -> MergePlan:
        """The same with these in place of `all_rows`, which lie on another device."""
        parts = zip(self.parts, part_rows, strict=True)
        return MergePlan(rows, tuple(Gather(part.source, placed) for part, placed in parts))

    def merge(self, local: Partial, remote: Sequence[Partial], backend: Backend) -> Tensor:
        """Attention over all keys, float32 [N, Hq, D]. local: of all rows of the microbatch; it may be overwritten."""
        out, lse = local
        if not self.parts:
            return out
        sources = [(out[self.rows], lse[self.rows]), *remote]
        everything: Partial | None = None
        partials: list[Partial] = []
        for part in self.parts:
            if part.source is None:
                outs, lses = everything = everything or _joined(sources)
            else:
                outs, lses = sources[part.source]
            partials.append((outs[part.rows], lses[part.rows]))
        merged = backend.merge(partials)[0]
        if self.rows == slice(0, len(out)):
            return merged
        out[self.rows] = merged
        return out


def merge_plan_of(seqs: Sequence[SeqParts], plans: Sequence[AttendPlan]) -> MergePlan:
    """plans: in the order in which their partials are given to `merge`. Index tensors are on the host."""
    if not seqs:
        return MergePlan(slice(0, 0), ())
    if len(seqs) == 1:
        return _plan_of_one(*seqs[0], plans)
    counts = [rows.stop - rows.start for rows, _, _ in seqs]
    local_starts = list(accumulate(counts, initial=0))
    ends = [local_starts[-1]]
    entry_starts: list[list[int]] = []
    for plan in plans:
        *starts, end = accumulate((entry.num_rows for entry in plan.entries), initial=ends[-1])
        entry_starts.append(starts)
        ends.append(end)
    starts_of_seqs: list[list[int]] = []
    for (_, remote, local_place), local_start in zip(seqs, local_starts, strict=False):
        starts = [entry_starts[plan][entry] for plan, entry in remote]
        starts.insert(local_place, local_start)
        starts_of_seqs.append(starts)
    parts = [
        np.concatenate([
            np.arange(starts[part], starts[part] + count) if part < len(starts) else np.full(count, ends[-1])
            for starts, count in zip(starts_of_seqs, counts, strict=True)
        ])
        for part in range(max(map(len, starts_of_seqs)))
    ]  # fmt: skip
    own_rows = np.concatenate([np.arange(rows.start, rows.stop) for rows, _, _ in seqs])
    return MergePlan(rows_of(own_rows), tuple(_gather(part, [0, *ends]) for part in parts))


def _plan_of_one(
    rows: slice, remote: Sequence[tuple[int, int]], local_place: int, plans: Sequence[AttendPlan]
) -> MergePlan:
    """Of a sequence alone no rows need an index."""
    count = rows.stop - rows.start
    first_rows = [list(accumulate((entry.num_rows for entry in plan.entries), initial=0)) for plan in plans]
    starts = [(plan + 1, first_rows[plan][entry]) for plan, entry in remote]
    starts.insert(local_place, (0, 0))
    return MergePlan(rows, tuple(Gather(source, slice(start, start + count)) for source, start in starts))


def merge_runs_of(seqs: Sequence[SeqParts], plans: Sequence[AttendPlan], num_rows: int) -> list[MergeRun]:
    """The same as runs of rows that cover the whole microbatch; those without partials of peers are their own ones."""
    entry_rows = [list(accumulate((entry.num_rows for entry in plan.entries), initial=0)) for plan in plans]
    runs: list[MergeRun] = []
    end = 0
    for rows, remote, local_place in sorted(seqs, key=lambda seq: seq[0].start):
        if rows.start > end:
            runs.append(MergeRun(end, rows.start - end, ((0, end),)))
        parts = [(plan + 1, entry_rows[plan][entry]) for plan, entry in remote]
        parts.insert(local_place, (0, rows.start))
        end = rows.stop
        runs.append(MergeRun(rows.start, end - rows.start, tuple(parts)))
    if num_rows > end:
        runs.append(MergeRun(end, num_rows - end, ((0, end),)))
    return runs


def rows_of(index: NDArray[np.int64]) -> Rows:
    """A slice where the rows follow each other."""
    first, last = int(index[0]), int(index[-1])
    if last - first + 1 == len(index) and bool((np.diff(index) == 1).all()):
        return slice(first, last + 1)
    return torch.from_numpy(index)


def _gather(index: NDArray[np.int64], starts: list[int]) -> Gather:
    """starts: of each source among all of them, and where the last one ends."""
    rows = rows_of(index)
    if isinstance(rows, slice):
        for source, (start, end) in enumerate(pairwise(starts)):
            if start <= rows.start and rows.stop <= end:
                return Gather(source, slice(rows.start - start, rows.stop - start))
        return Gather(None, torch.from_numpy(index))
    return Gather(None, rows)


def _joined(sources: Sequence[Partial]) -> Partial:
    outs, lses = zip(*sources, strict=True)
    nothing = outs[0].new_zeros(1, *outs[0].shape[1:]), lses[0].new_full((1, *lses[0].shape[1:]), -torch.inf)
    return torch.cat((*outs, nothing[0])), torch.cat((*lses, nothing[1]))
