"""What is kept for small requests follows what they hold."""

from __future__ import annotations

import pytest

from distkv.control.request.sequence import SeqState
from distkv.control.schedule.admission.small_ones import TIMES, WINDOW_S
from tests.control.schedule.admitting import Admitting

POOL = 80
MOST = 8


def kept(admitting: Admitting) -> int:
    return admitting.state.small_ones.blocks(admitting.clock.now())


def test_nothing_is_kept_where_no_small_one_runs() -> None:
    admitting = Admitting(POOL)
    admitting.run("large", MOST + 1)
    admitting.admit()
    admitting.clock.advance(100 * WINDOW_S)
    assert kept(admitting) == 0


def test_what_is_kept_comes_near_a_multiple_of_what_they_hold_and_is_a_tenth_of_the_pool_at_most() -> None:
    admitting = Admitting(POOL)
    admitting.run("large", MOST + 1)
    admitting.run("small", 1)
    admitting.admit()
    found = []
    for _ in range(40):
        found.append(kept(admitting))
        admitting.clock.advance(WINDOW_S / 10)
    assert found == sorted(found)
    assert (found[0], found[5], found[-1]) == (0, 2, TIMES)
    admitting.run("another", MOST)
    admitting.admit()
    admitting.clock.advance(WINDOW_S)
    assert kept(admitting) == MOST


def test_it_is_forgotten_when_none_come_any_more() -> None:
    admitting = Admitting(POOL)
    small = admitting.run("small", 2)
    admitting.admit()
    admitting.clock.advance(10 * WINDOW_S)
    assert kept(admitting) == MOST
    del admitting.state.sequences[small.request_id]
    admitting.debts.drop(small, admitting.clock.now())
    admitting.admit()
    assert kept(admitting) == MOST
    admitting.clock.advance(WINDOW_S)
    assert kept(admitting) == 3
    admitting.clock.advance(2 * WINDOW_S)
    assert kept(admitting) == 1


@pytest.mark.parametrize("looks", [1, 50])
def test_how_often_it_is_looked_does_not_matter(looks: int) -> None:
    admitting = Admitting(POOL)
    admitting.run("small", 1)
    admitting.admit()
    for _ in range(looks):
        admitting.clock.advance(WINDOW_S / looks)
        admitting.state.small_ones.look(admitting.clock.now())
    assert kept(admitting) == 3


@pytest.mark.parametrize("policy", ["contract", "greedy"])
def test_who_could_wait_leaves_what_is_kept(policy: str) -> None:
    left = {}
    for size in (24, 48):  # the other one could not wait
        admitting = Admitting(40)
        admitting.state.policy = policy
        admitting.state.growing.outputs.ended(1)
        admitting.run("running", 22)
        admitting.run("small", 2)
        admitting.state.small_ones.look(admitting.clock.now())
        admitting.clock.advance(0.3 * WINDOW_S)
        seq = admitting.wait("r", size, arrival=5.0)
        admitting.admit()
        assert seq.state is SeqState.ACQUIRING
        left[admitting.borrow().is_avoidable] = admitting.state.pool.num_free
    assert left[True] - left[False] == {"contract": 3, "greedy": 4}[policy]
