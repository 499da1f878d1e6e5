"""Partials of peers merged once for a batch, as if one by one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import pytest
import torch

from distkv.engine.attention.exchange import Exchange
from distkv.engine.attention.merging import Merging, Pick, merging_of, rows_of
from distkv.engine.attention.remote import CreditorLink
from distkv.kernels import Partial, merge
from distkv.kernels.cpu.torch_backend import TorchBackend
from distkv.wire.messages.common import Epoch, SpanRef
from distkv.wire.messages.data import AttendEntry, AttendPlan

HEADS, DIM = 2, 4


def exchange(*rows: int) -> Exchange:
    """With an entry of so many rows each."""
    ref = SpanRef(span_id="s", epoch=Epoch(1, 1))
    entries = tuple(
        AttendEntry(request_id="r", span=ref, index=0, num_blocks=1, first_position=0, row=0, num_rows=count)
        for count in rows
    )
    plan = AttendPlan(step_id=1, num_rows=sum(rows), entries=entries)
    return Exchange("x", cast(CreditorLink, None), plan, slice(0, 1), [set() for _ in rows])


def partial(num_rows: int, seed: int) -> Partial:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(num_rows, HEADS, DIM, generator=generator), torch.randn(num_rows, HEADS, generator=generator)


def part(of: Partial, start: int, count: int) -> Partial:
    return of[0][start : start + count], of[1][start : start + count]


X, Y = exchange(2, 3), exchange(3, 1)
SEQS = [(slice(0, 2), [(X, 0)], 1), (slice(2, 5), [(Y, 0), (X, 1)], 1), (slice(7, 8), [(Y, 1)], 0)]


def check(seqs: Sequence[tuple[slice, list[tuple[Exchange, int]], int]], merging: Merging, num_rows: int) -> None:
    local, answers = partial(num_rows, 0), {id(X): partial(5, 1), id(Y): partial(4, 2)}
    expected = local[0].clone()
    for rows, remote, place in seqs:
        count = rows.stop - rows.start
        parts = [part(answers[id(one)], one.first_row(entry), count) for one, entry in remote]
        parts.insert(place, part(local, rows.start, count))
        expected[rows] = merge(parts)[0]
    found = merging.merge(local, list(answers.values()), TorchBackend())
    torch.testing.assert_close(found, expected, atol=0, rtol=0)


def test_a_mixed_batch() -> None:
    """Rows 5 and 6 are local alone; the sequences have two, three and two partials."""
    merging = merging_of(SEQS, [X, Y])
    assert len(merging.ranks) == 3
    check(SEQS, merging, 8)


@pytest.mark.parametrize("seq", SEQS, ids=["before", "between", "behind"])
def test_one_sequence_needs_no_index(seq: tuple[slice, list[tuple[Exchange, int]], int]) -> None:
    merging = merging_of([seq], [X, Y])
    assert isinstance(merging.rows, slice) and all(isinstance(rank.rows, slice) for rank in merging.ranks)
    check([seq], merging, 8)


def test_where_all_rows_have_partials_nothing_is_put_back() -> None:
    seqs = [(slice(0, 3), [(X, 1)], 1)]
    merging = merging_of(seqs, [X, Y])
    assert merging == Merging(slice(0, 3), [Pick(1, slice(2, 5)), Pick(0, slice(0, 3))])
    check(seqs, merging, 3)


def test_rows_that_follow_each_other() -> None:
    assert rows_of(torch.arange(3, 9).numpy()) == slice(3, 9)
    assert isinstance(rows_of(torch.tensor([3, 4, 6]).numpy()), torch.Tensor)
    assert isinstance(rows_of(torch.tensor([3, 5, 4]).numpy()), torch.Tensor)
    assert isinstance(rows_of(torch.tensor([4, 4]).numpy()), torch.Tensor)
