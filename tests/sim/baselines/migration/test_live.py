"""One request that moves while it decodes. Of PROFILE a step of one sequence takes 20 ms, an rBlock has 16 tokens."""

from __future__ import annotations

from itertools import pairwise

import pytest

from distkv.sim.baselines.batching.instance import BatchingInstance
from distkv.sim.baselines.batching.served import Served
from distkv.sim.baselines.migration.live import Migration
from distkv.sim.timed.agenda import Action
from tests.sim.baselines.parts import Bench

BLOCK_S = 0.01


class Moving(Bench):
    """copies: when each began, and of how many rBlocks. over: migrations that are."""

    def __init__(self, block_s: float = BLOCK_S) -> None:
        super().__init__(2)
        self.block_s = block_s
        self.copies: list[tuple[float, int]] = []
        self.over: list[Migration] = []

    def migrate(self, one: Served) -> Migration:
        migration = Migration(one, self.instances[0], self.instances[1], self.copy, self.over.append)
        migration.begin()
        return migration

    def copy(self, source: BatchingInstance, target: BatchingInstance, blocks: int, done: Action) -> None:
        self.copies.append((self.agenda.now(), blocks))
        self.agenda.after(blocks * self.block_s, done)


def pauses(one: Served) -> list[float]:
    return [after - before for before, after in pairwise(one.outcome.times_s)]


def test_it_decodes_while_it_is_copied_and_stops_for_the_last() -> None:
    bench = Moving()
    one = bench.submit(960, 200)
    bench.run(until=1.0)
    computed = one.computed
    migration = bench.migrate(one)
    bench.run()
    full = computed // 16
    (first_s, first), (last_s, last) = bench.copies
    assert (first_s, first) == (1.0, full) and 1 <= last <= 4
    assert (
        first + last
        == 1 + (one.outcome.request.prompt_tokens + sum(1 for at in one.outcome.times_s if at <= last_s) - 2) // 16
    )
    assert last_s - first_s == pytest.approx(full * BLOCK_S, abs=0.025), "it goes on while the first is copied"
    assert migration.moved and bench.over == [migration] and migration.blocks == first + last
    assert max(pauses(one)) == pytest.approx(last * BLOCK_S + min(pauses(one)), rel=0.05)
    assert len(one.outcome.times_s) == 200 and bench.ended == [one]
    assert [instance.free for instance in bench.instances] == [100, 100]
    assert bench.instances[1].counters.generation_tokens > 100


def test_it_goes_on_there_in_the_next_step_of_others() -> None:
    bench = Moving()
    one = bench.submit(100, 200)
    bench.submit(100, 300, to=1)
    bench.run(until=1.0)
    bench.migrate(one)
    bench.run()
    (_, blocks), *_ = bench.copies
    assert bench.over[0].moved
    assert max(pauses(one)) < blocks * BLOCK_S + 2.2 * min(pauses(one))


def test_a_short_one_stops_at_once() -> None:
    bench = Moving()
    one = bench.submit(100, 50)
    bench.run(until=0.5)
    bench.migrate(one)
    bench.run()
    assert len(bench.copies) == 1 and bench.over[0].moved


def test_what_is_written_meanwhile_is_copied_again_while_it_is_much() -> None:
    """60 rBlocks take 6 s, in which 300 tokens come."""
    bench = Moving(block_s=0.1)
    one = bench.submit(960, 500)
    bench.run(until=1.0)
    bench.migrate(one)
    bench.run()
    assert [blocks for _, blocks in bench.copies][1] in (18, 19) and len(bench.copies) == 3
    assert bench.over[0].moved and len(one.outcome.times_s) == 500


def test_who_never_gets_nearer_stays() -> None:
    """A copy takes as long as writing the same."""
    bench = Moving(block_s=0.35)
    one = bench.submit(300, 1200)
    bench.run(until=1.0)
    bench.migrate(one)
    bench.run()
    assert len(bench.copies) == 3 and not bench.over[0].moved
    assert len(one.outcome.times_s) == 1200 and [instance.free for instance in bench.instances] == [100, 100]


def test_who_ends_meanwhile_stays() -> None:
    bench = Moving(block_s=0.1)
    one = bench.submit(960, 20)
    bench.run(until=0.3)
    bench.migrate(one)
    bench.run()
    assert not bench.over[0].moved and bench.ended == [one]
    assert [instance.free for instance in bench.instances] == [100, 100]


def test_who_is_preempted_meanwhile_stays() -> None:
    bench = Moving(block_s=0.1)
    old, young = bench.submit(760, 100), bench.submit(760, 100)
    bench.run(until=0.9)
    bench.migrate(young)
    bench.run()
    assert young.lives == 1 and not bench.over[0].moved and bench.ended == [old, young]
    assert [instance.free for instance in bench.instances] == [100, 100]


def test_where_there_is_no_memory_it_does_not_go() -> None:
    bench = Moving()
    one, other = bench.submit(960, 50), bench.submit(960, 50, to=1)
    bench.run(until=0.5)
    bench.migrate(one)
    assert not bench.copies and not bench.over[0].moved
    bench.run()
    assert len(one.outcome.times_s) == len(other.outcome.times_s) == 50


def test_where_memory_ends_meanwhile_it_goes_on_where_it_was() -> None:
    """Who comes there needs what the last copy would."""
    bench = Moving(block_s=0.02)
    one = bench.submit(960, 200)
    bench.run(until=0.5)
    bench.migrate(one)
    bench.run(until=1.5)
    bench.submit(600, 60, to=1)
    bench.run()
    assert not bench.over[0].moved and len(bench.copies) == 1
    assert max(pauses(one)) < 0.03
    assert [instance.free for instance in bench.instances] == [100, 100]


def test_who_is_over_on_its_way_is_dropped_there() -> None:
    bench = Moving(block_s=0.1)
    one = bench.submit(100, 50)
    bench.run(until=0.5)
    bench.migrate(one)
    bench.run(until=0.6)
    assert not bench.instances[0].running and not bench.instances[1].running
    one.is_over = True
    bench.run()
    assert [instance.free for instance in bench.instances] == [100, 100] and not bench.ended
