"""BlockCounts and BlockTable: kept up to date block by block, they say what a look at all blocks would."""

from __future__ import annotations

from collections.abc import Iterator

from hypothesis import given
from hypothesis import strategies as st

from distkv.control.request.block import Block, BlockCounts, Debt
from distkv.control.request.block_table import BlockTable
from distkv.wire.messages.common import Epoch, Run, SpanRef
from distkv.wire.messages.to_worker import RemoteSpan
from tests.control.parts import add_sequence, compute, lend, make_state, place


def debt(name: str) -> Debt:
    return Debt(SpanRef(span_id=name, epoch=Epoch(1, 1)), name, tuple(range(64)), 0.0, 4.0)


DEBTS = [debt("p"), debt("q")]
PLACES = st.one_of(
    st.tuples(st.just("here"), st.integers(0, 5)),
    st.tuples(st.sampled_from(["p", "q"]), st.integers(0, 5)),
    st.tuples(st.just("moving"), st.integers(0, 5)),
    st.just(("nowhere", 0)),
)


def block_at(number: int, kind: str, at: int) -> Block:
    if kind == "here":
        return Block(number, slot=at)
    if kind == "moving":
        return Block(number, debt=DEBTS[1], index=0, moving_from=DEBTS[0], moving_from_index=at)
    if kind == "nowhere":
        return Block(number)
    return Block(number, debt=DEBTS[kind == "q"], index=at, arrived=True)


def naive(blocks: list[Block]) -> tuple[list[tuple[int, int]], list[tuple[int, str, int]]]:
    local = [(b.number, b.slot) for b in blocks if b.slot is not None]
    remote = [(b.number, place[0].creditor_id, place[1]) for b in blocks if (place := b.location()) is not None]
    return local, remote


def spread(local: tuple[Run, ...]) -> list[tuple[int, int]]:
    return [(run.first_block + i, run.first_slot + i) for run in local for i in range(run.num_blocks)]


def spread_remote(remote: tuple[RemoteSpan, ...]) -> list[tuple[int, str, int]]:
    return [(span.first_block + i, span.instance_id, span.index + i) for span in remote for i in range(span.num_blocks)]


@given(
    st.lists(PLACES, max_size=20),
    st.lists(st.tuples(st.integers(0, 20), st.lists(st.tuples(st.integers(0, 19), PLACES), max_size=3)), max_size=6),
)
def test_a_block_table_in_pieces_is_the_one_at_once(
    places: list[tuple[str, int]], requested: list[tuple[int, list[tuple[int, tuple[str, int]]]]]
) -> None:
    blocks = [block_at(number, kind, at) for number, (kind, at) in enumerate(places)]
    table = BlockTable()
    for count, changes in requested:
        for number, (kind, at) in changes:
            if number < len(blocks):
                blocks[number] = block_at(number, kind, at)
                table.forget_from(number)
        count = min(count, len(blocks))
        local, remote = table.of(blocks, count)
        assert (spread(local), spread_remote(remote)) == naive(blocks[:count])
        assert BlockTable().of(blocks, count) == (local, remote), "runs are as long as can be"
        assert table.is_of(blocks)


@given(st.lists(PLACES, max_size=12), st.lists(st.tuples(st.integers(0, 11), PLACES, st.booleans()), max_size=12))
def test_counts_follow_every_change(
    places: list[tuple[str, int]], changes: list[tuple[int, tuple[str, int], bool]]
) -> None:
    blocks = [Block(number) for number in range(len(places))]
    counts = BlockCounts()
    counts.add(len(blocks))
    counts.validate(blocks)
    for number, (kind, at), full in [(n, where, False) for n, where in enumerate(places)] + changes:
        if number < len(blocks):
            changed, counted = block_at(number, kind, at), blocks[number].counted
            changed.counted, changed.full, blocks[number] = counted, full, changed
            counts.update(changed)
            counts.validate(blocks)
            assert counts.local == sum(b.slot is not None for b in blocks)
            assert counts.unplaced == sum(b.slot is None and b.debt is None and b.moving_from is None for b in blocks)
            assert counts.awaiting_slot == sum(
                b.slot is None and b.moving_from is None and not b.arrived for b in blocks
            )
            assert counts.outgoing == sum(b.slot is not None and b.debt is not None for b in blocks)
            assert counts.movable == sum(b.slot is not None and b.debt is None and b.full for b in blocks)


class Watched(list[Block]):
    """Counts how many blocks are looked at."""

    looks = 0

    def __getitem__(self, key: object) -> object:  # type: ignore[override]
        self.looks += 1
        return super().__getitem__(key)  # type: ignore[call-overload]

    def __iter__(self) -> Iterator[Block]:
        self.looks += len(self)
        return super().__iter__()


def test_a_decode_step_of_a_long_sequence_looks_at_few_of_its_blocks() -> None:
    state = make_state(num_blocks=2100)
    seq = add_sequence(state, num_tokens=2048 * 4 - 2, max_tokens=64)
    compute(state, seq)
    place(state, seq, lend(seq, "p", 700))
    place(state, seq, lend(seq, "q", 700, at=700))
    seq.placement.blocks = watched = Watched(seq.placement.blocks)
    seq.uncomputed.add(seq.length - 1, seq.length)
    looks = []
    for _turn in range(20):
        watched.looks = 0
        step = state.scheduler.plan(state.running(), now=0.0)
        looks.append(watched.looks)
        assert step is not None
        state.scheduler.finished(step.step_id)
        seq.append(1)
    assert looks[0] >= 2048 and max(looks[1:]) < 10
    seq.validate()
