"""Census and Layout: kept up to date block by block, they say what a look at all blocks would."""

from __future__ import annotations

from collections.abc import Iterator

from hypothesis import given
from hypothesis import strategies as st

from distkv.control.request.placement import Block, Census, Debt, Layout
from distkv.wire.messages.common import Epoch, Run, SpanRef
from distkv.wire.messages.to_worker import RemoteSpan
from tests.control.parts import add_sequence, compute, lend, make_instance, place


def debt(name: str) -> Debt:
    return Debt(SpanRef(span_id=name, epoch=Epoch(1, 1)), name, tuple(range(64)), 0.0)


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
        return Block(number, debt=DEBTS[1], index=0, home=DEBTS[0], home_index=at)
    if kind == "nowhere":
        return Block(number)
    return Block(number, debt=DEBTS[kind == "q"], index=at, placed=True)


def naive(blocks: list[Block]) -> tuple[list[tuple[int, int]], list[tuple[int, str, int]]]:
    local = [(b.number, b.slot) for b in blocks if b.slot is not None]
    remote = [(b.number, place[0].creditor_id, place[1]) for b in blocks if (place := b.whereabouts()) is not None]
    return local, remote


def spread(local: tuple[Run, ...]) -> list[tuple[int, int]]:
    return [(run.first_block + i, run.first_slot + i) for run in local for i in range(run.num_blocks)]


def spread_remote(remote: tuple[RemoteSpan, ...]) -> list[tuple[int, str, int]]:
    return [(span.first_block + i, span.instance_id, span.index + i) for span in remote for i in range(span.num_blocks)]


@given(
    st.lists(PLACES, max_size=20),
    st.lists(st.tuples(st.integers(0, 20), st.lists(st.tuples(st.integers(0, 19), PLACES), max_size=3)), max_size=6),
)
def test_a_layout_in_pieces_is_the_layout_at_once(
    places: list[tuple[str, int]], asked: list[tuple[int, list[tuple[int, tuple[str, int]]]]]
) -> None:
    blocks = [block_at(number, kind, at) for number, (kind, at) in enumerate(places)]
    layout = Layout()
    for count, changes in asked:
        for number, (kind, at) in changes:
            if number < len(blocks):
                blocks[number] = block_at(number, kind, at)
                layout.forget_from(number)
        count = min(count, len(blocks))
        local, remote = layout.of(blocks, count)
        assert (spread(local), spread_remote(remote)) == naive(blocks[:count])
        assert Layout().of(blocks, count) == (local, remote), "runs are as long as can be"
        assert layout.is_of(blocks)


@given(st.lists(PLACES, max_size=12), st.lists(st.tuples(st.integers(0, 11), PLACES, st.booleans()), max_size=12))
def test_a_census_follows_every_change(
    places: list[tuple[str, int]], changes: list[tuple[int, tuple[str, int], bool]]
) -> None:
    blocks = [Block(number) for number in range(len(places))]
    census = Census()
    census.add(len(blocks))
    census.validate(blocks)
    for number, (kind, at), sealed in [(n, where, False) for n, where in enumerate(places)] + changes:
        if number < len(blocks):
            changed, counted = block_at(number, kind, at), blocks[number].counted
            changed.counted, changed.sealed, blocks[number] = counted, sealed, changed
            census.update(changed)
            census.validate(blocks)


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
    instance = make_instance(num_blocks=2100)
    seq = add_sequence(instance, num_tokens=2048 * 4 - 2, max_tokens=64)
    compute(instance, seq)
    place(instance, seq, lend(seq, "p", 700))
    place(instance, seq, lend(seq, "q", 700, at=700))
    seq.blocks = watched = Watched(seq.blocks)
    seq.todo.add(seq.length - 1, seq.length)
    looks = []
    for _turn in range(20):
        watched.looks = 0
        step = instance.batcher.plan(instance.running(), now=0.0)
        looks.append(watched.looks)
        assert step is not None
        instance.batcher.finished(step.step_id)
        seq.tokens.append(1)
        seq.pending -= 1
    assert looks[0] >= 2048 and max(looks[1:]) < 10
    seq.validate()
