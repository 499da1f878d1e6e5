"""Partials of peers merged once for a batch, as if one by one."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch

from distkv.engine.attention.merging import Gather, MergePlan, SeqParts, merge_plan_of, merge_runs_of, rows_of
from distkv.kernels import Partial, merge
from distkv.kernels.cpu.torch_backend import TorchBackend
from distkv.wire.messages.common import Epoch, SpanRef
from distkv.wire.messages.data import AttendEntry, AttendPlan

HEADS, DIM = 2, 4


def plan(*rows: int) -> AttendPlan:
    """With an entry of so many rows each."""
    ref = SpanRef(span_id="s", epoch=Epoch(1, 1))
    entries = tuple(
        AttendEntry(request_id="r", span=ref, index=0, num_blocks=1, first_position=0, row=0, num_rows=count)
        for count in rows
    )
    return AttendPlan(step_id=1, num_rows=sum(rows), entries=entries)


def partial(num_rows: int, seed: int) -> Partial:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(num_rows, HEADS, DIM, generator=generator), torch.randn(num_rows, HEADS, generator=generator)


def part(of: Partial, start: int, count: int) -> Partial:
    return of[0][start : start + count], of[1][start : start + count]


X, Y = 0, 1
PLANS = [plan(2, 3), plan(3, 1)]
FIRST_ROW = {(X, 0): 0, (X, 1): 2, (Y, 0): 0, (Y, 1): 3}
SEQS: list[SeqParts] = [(slice(0, 2), [(X, 0)], 1), (slice(2, 5), [(Y, 0), (X, 1)], 1), (slice(7, 8), [(Y, 1)], 0)]


def check(seqs: Sequence[SeqParts], merge_plan: MergePlan, num_rows: int) -> None:
    local, remote_partials = partial(num_rows, 0), [partial(5, 1), partial(4, 2)]
    expected = local[0].clone()
    for rows, remote, place in seqs:
        count = rows.stop - rows.start
        parts = [part(remote_partials[source[0]], FIRST_ROW[source], count) for source in remote]
        parts.insert(place, part(local, rows.start, count))
        expected[rows] = merge(parts)[0]
    found = merge_plan.merge(local, remote_partials, TorchBackend())
    torch.testing.assert_close(found, expected, atol=0, rtol=0)


def test_a_mixed_batch() -> None:
    """Rows 5 and 6 are local alone; the sequences have two, three and two partials."""
    merge_plan = merge_plan_of(SEQS, PLANS)
    assert len(merge_plan.parts) == 3
    check(SEQS, merge_plan, 8)


@pytest.mark.parametrize("seq", SEQS, ids=["before", "between", "behind"])
def test_one_sequence_needs_no_index(seq: SeqParts) -> None:
    merge_plan = merge_plan_of([seq], PLANS)
    assert all(isinstance(rows, slice) for rows in merge_plan.all_rows())
    check([seq], merge_plan, 8)


def test_where_all_rows_have_partials_nothing_is_put_back() -> None:
    seqs: list[SeqParts] = [(slice(0, 3), [(X, 1)], 1)]
    merge_plan = merge_plan_of(seqs, PLANS)
    assert merge_plan == MergePlan(slice(0, 3), (Gather(1, slice(2, 5)), Gather(0, slice(0, 3))))
    check(seqs, merge_plan, 3)


def test_without_peers_local_attention_is_all() -> None:
    local = partial(3, 0)
    merge_plan = merge_plan_of([], [])
    assert merge_plan.merge(local, [], TorchBackend()) is local[0]


def test_index_tensors_can_be_placed_elsewhere() -> None:
    merge_plan = merge_plan_of(SEQS, PLANS)
    moved = [rows.clone() if isinstance(rows, torch.Tensor) else rows for rows in merge_plan.all_rows()]
    placed = merge_plan.with_rows(*moved)
    assert all(one is other for one, other in zip(placed.all_rows(), moved, strict=True))
    assert [part.source for part in placed.parts] == [part.source for part in merge_plan.parts]
    check(SEQS, placed, 8)


def test_rows_that_follow_each_other() -> None:
    assert rows_of(torch.arange(3, 9).numpy()) == slice(3, 9)
    assert isinstance(rows_of(torch.tensor([3, 4, 6]).numpy()), torch.Tensor)
    assert isinstance(rows_of(torch.tensor([3, 5, 4]).numpy()), torch.Tensor)
    assert isinstance(rows_of(torch.tensor([4, 4]).numpy()), torch.Tensor)


def test_runs_cover_all_rows_with_the_same_partials() -> None:
    """In any order of sequences; rows between, before and behind them are merged with nothing."""
    seqs = [(slice(rows.start + 1, rows.stop + 1), remote, place) for rows, remote, place in SEQS]
    runs = merge_runs_of([seqs[2], seqs[0], seqs[1]], PLANS, 11)
    assert [(run.row, run.num_rows) for run in runs] == [(0, 1), (1, 2), (3, 3), (6, 2), (8, 1), (9, 2)]
    sources = [partial(11, 0), partial(5, 1), partial(4, 2)]
    found = torch.empty_like(sources[0][0])
    for run in runs:
        parts = [part(sources[source], row, run.num_rows) for source, row in run.parts]
        found[run.row : run.row + run.num_rows] = merge(parts)[0]
    expected = merge_plan_of(seqs, PLANS).merge(sources[0], sources[1:], TorchBackend())
    torch.testing.assert_close(found, expected, atol=0, rtol=0)
