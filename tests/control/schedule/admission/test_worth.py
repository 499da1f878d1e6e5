"""What borrowing is worth to a request that its own instance can hold, by what steps were seen to take."""

from __future__ import annotations

import math
from random import Random

import pytest

from distkv.control.schedule.admission.worth import (
    OUTLIER,
    UNSEEN_WAIT,
    WAIT_HALF_LIFE_S,
    Choice,
    StepTime,
    Worth,
)

BASE_S, EACH_S = 0.020, 0.00115
"""A step of decodes of the benchmarks' model b on one core."""


def step_s(decodes: int) -> float:
    return BASE_S + EACH_S * decodes


class Seen:
    """An instance whose steps were seen."""

    def __init__(self, batches: tuple[int, ...] = (1, 2, 4, 8, 12)) -> None:
        self.worth, self.waited_s, self.now = Worth(), 0.0, 100.0
        for _ in range(4):
            for decodes in batches:
                self.step(decodes)

    def step(
        self, decodes: int, wait_s: float | None = None, *, has_chunks: bool = False, longer_s: float = 0.0
    ) -> None:
        self.waited_s += wait_s or 0.0
        self.worth.observe(
            decodes,
            has_chunks=has_chunks,
            is_remote=wait_s is not None,
            compute_s=step_s(decodes) + (wait_s or 0.0) + longer_s,
            attend_wait_s=self.waited_s,
            now=self.now,
        )

    def pays(
        self,
        batch: int,
        home_steps: float = 20.0,
        life_steps: float = 100.0,
        *,
        is_remote: bool = False,
    ) -> bool:
        return self.worth.pays(Choice(batch, is_remote, home_steps, life_steps), self.now)


def test_a_step_is_a_line_over_its_decodes() -> None:
    time, random = StepTime(), Random(1)
    assert not time.is_known
    for _ in range(200):
        decodes = random.randint(1, 16)
        time.observe(decodes, step_s(decodes) * random.uniform(0.9, 1.1))
    for decodes in (1, 8, 17):
        assert time.of(decodes) == pytest.approx(step_s(decodes), rel=0.05)


def test_where_all_steps_were_alike_one_more_costs_nothing() -> None:
    time = StepTime()
    for _ in range(5):
        time.observe(6, 0.030)
    assert time.of(7) == pytest.approx(0.030)


def test_one_stall_is_not_what_steps_cost() -> None:
    time = StepTime()
    for decodes in (2, 4, 6, 8):
        time.observe(decodes, step_s(decodes))
        time.observe(decodes, step_s(decodes))
    time.observe(8, 60.0)
    assert time.of(8) <= OUTLIER * step_s(8)


def test_a_small_batch_that_stays_small_for_long_is_worth_waiting_for_partials() -> None:
    seen = Seen()
    seen.step(2, 0.007)
    assert seen.pays(1, home_steps=200.0, life_steps=100.0)
    assert seen.pays(1, home_steps=math.inf)


def test_a_batch_that_is_large_gains_less_than_it_loses() -> None:
    """Nine sequences with waits make fewer tokens than eight without."""
    seen = Seen()
    seen.step(2, 0.007)
    assert not seen.pays(8, home_steps=200.0)
    assert not seen.pays(8, home_steps=math.inf)


def test_memory_that_comes_free_soon_is_not_worth_waits_for_the_whole_request() -> None:
    seen = Seen()
    seen.step(2, 0.007)
    assert not seen.pays(1, home_steps=5.0, life_steps=200.0)
    assert seen.pays(1, home_steps=5.0, life_steps=6.0)


def test_memory_that_comes_free_before_its_prompt_is_computed_gains_nothing() -> None:
    seen = Seen()
    seen.step(2, 0.007)

    def pays(prefill_steps: float) -> bool:
        choice = Choice(1, False, 200.0, 250.0, prefill_s=prefill_steps * step_s(1))
        return seen.worth.pays(choice, seen.now)

    assert pays(0) and not pays(180) and not pays(400)


def test_where_others_would_have_the_memory_at_home_a_whole_life_of_waits_is_compared_with_a_smaller_batch() -> None:
    """Whoever waits for it leaves the batch smaller by one for as long, however soon memory comes free."""
    seen = Seen()
    seen.step(2, 0.004)

    def pays(batch: int, prefill_s: float = 0.0) -> bool:
        choice = Choice(batch, False, 5.0, 200.0, is_in_demand=True, prefill_s=prefill_s)
        return seen.worth.pays(choice, seen.now)

    assert not seen.pays(1, home_steps=5.0, life_steps=200.0) and pays(1)
    assert not pays(8)
    assert not pays(1, prefill_s=100.0), "hardly any of its time is decode, and only that gains"


def test_where_steps_wait_anyway_one_more_costs_little() -> None:
    seen = Seen()
    seen.step(2, 0.007)
    assert seen.pays(8, is_remote=True)


def test_before_anybody_waited_a_share_of_a_step_is_held_against_it() -> None:
    seen = Seen()
    assert seen.worth.wait_s(seen.now) is None
    largest = max(batch for batch in range(1, 16) if seen.pays(batch, home_steps=math.inf))
    joined = step_s(largest + 1) + UNSEEN_WAIT * step_s(largest)
    assert (largest + 1) / joined > largest / step_s(largest)
    assert largest < 8


def test_what_a_step_takes_longer_for_asking_creditors_counts_beside_its_wait() -> None:
    """It was a fifth of a step here, and counted as nothing: many borrowed that lost by it."""
    waits, asks = Seen(), Seen()
    for decodes in (2, 4, 6):
        waits.step(decodes, 0.002)
        asks.step(decodes, 0.002, longer_s=0.005)
    assert waits.worth.remote_s(4, waits.now) == pytest.approx(0.002)
    assert asks.worth.remote_s(4, asks.now) == pytest.approx(0.007)
    assert waits.pays(4, home_steps=math.inf) and not asks.pays(4, home_steps=math.inf)
    asks.step(4, 0.002, longer_s=50.0)
    longest_s = asks.worth.remote_s(4, asks.now)
    assert longest_s is not None and longest_s <= 0.002 + step_s(4), "up to as long again"


def test_a_profile_says_what_a_wait_costs_until_one_was_seen() -> None:
    seen = Seen()

    def pays(profiled_wait_s: float) -> bool:
        return seen.worth.pays(Choice(4, False, math.inf, 100.0, profiled_wait_s), seen.now)

    assert pays(0.0001) and not pays(0.05)
    seen.step(4, 0.05)
    assert not pays(0.0001)


def test_waits_are_forgotten_in_time_so_that_it_is_tried_again() -> None:
    seen = Seen()
    for _ in range(20):
        seen.step(4, 0.012)
    assert not seen.pays(8, home_steps=math.inf)
    seen.now += 6 * WAIT_HALF_LIFE_S
    assert seen.pays(8, home_steps=math.inf)
    seen.step(4, 0.012)
    seen.step(4, 0.012)
    seen.step(4, 0.012)
    assert not seen.pays(8, home_steps=math.inf)


def test_steps_with_prefill_say_nothing_of_decodes() -> None:
    seen = Seen()
    before = seen.worth.wait_s(seen.now)
    seen.step(4, 0.5, has_chunks=True)
    assert seen.worth.wait_s(seen.now) == before
    seen.step(4, 0.004)
    assert seen.worth.wait_s(seen.now) == pytest.approx(0.004), "waits of steps with prefill count for those"


def test_nothing_is_held_against_borrowing_while_nothing_is_known() -> None:
    worth = Worth()
    choice = Choice(batch=8, is_remote=False, home_steps=1.0, life_steps=100.0)
    assert worth.pays(choice, 0.0)
    worth.observe(8, has_chunks=False, is_remote=True, compute_s=0.0, attend_wait_s=1.0, now=0.0)
    assert worth.pays(choice, 0.0)


def test_an_empty_batch_always_gains() -> None:
    seen = Seen()
    seen.step(1, 0.5)
    assert seen.pays(0)
