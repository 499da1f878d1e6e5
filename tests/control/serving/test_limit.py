"""ServingLimit: when nothing more is lent, and how much goes back, so that it neither hurts nor ping-pongs."""

from __future__ import annotations

import itertools
import math

import pytest

from distkv.control.serving.limit import FIRST_PAUSE_S, JUDGED_S, LONGEST_PAUSE_S, TARGET, ServingLimit
from tests.control.parts import calls

STEP_S = 0.02
PATIENCE_S = 1.0


class Own:
    """Own steps of STEP_S each, to which serving adds `share` of what they then take."""

    def __init__(self, max_fraction: float = 0.5, max_tpot_s: float | None = None) -> None:
        self.limit = ServingLimit(max_fraction, max_tpot_s, PATIENCE_S)
        self.now, self.served_s = 100.0, 0.0

    def run(self, seconds: float, share: float, *, step_s: float = STEP_S, is_decoding: bool = True) -> None:
        end = self.now + seconds
        while self.now < end:
            compute_s = step_s / (1 - share)
            self.served_s += share * compute_s
            self.now += compute_s
            self.limit.on_step(compute_s, self.served_s, is_decoding, self.now)

    def excess(self, blocks: int = 100) -> int:
        return self.limit.excess_blocks(blocks, self.now)


def test_below_its_limit_nothing_happens() -> None:
    own = Own()
    own.run(20, 0.45)
    assert own.limit.fraction == pytest.approx(0.45, abs=0.01)
    assert not own.limit.is_limited and own.excess() == 0 and own.limit.next_deadline() == math.inf
    assert own.limit.retry_after_s(own.now) == 0


def test_beyond_it_nothing_more_is_lent_and_after_a_while_some_goes_back() -> None:
    own = Own()
    own.run(0.15, 0.8)
    assert not own.limit.is_limited, "too little is known"
    own.run(0.5, 0.8)
    assert own.limit.is_limited and own.excess() == 0
    assert 0 < own.limit.retry_after_s(own.now) <= FIRST_PAUSE_S
    assert "80% of the time of its own steps" in own.limit.why()
    own.run(PATIENCE_S, 0.8)
    # What is left is to be 0.35 of the whole, where it is 0.8: by what steps take without it, 0.54 and 4 times.
    left = 1 - own.excess(1000) / 1000
    assert left * 0.8 / (left * 0.8 + 0.2) == pytest.approx(0.35, abs=0.01)


def test_what_a_reclaim_changed_is_judged_by_itself() -> None:
    """Of half the time, by an average that still has four fifths in it."""
    own = Own(max_fraction=0.3)
    own.run(PATIENCE_S + 1.0, 0.8)
    own.limit.measure_anew(own.now)
    assert own.excess() == 0, "nothing is seen of it yet"
    own.run(JUDGED_S, 0.5)
    assert own.limit.fraction > 0.6
    left = 1 - own.excess(1000) / 1000
    assert left * 0.5 / (left * 0.5 + 0.5) == pytest.approx(TARGET * 0.3, abs=0.01)
    own.limit.measure_anew(own.now)
    own.run(JUDGED_S, 0.25)
    assert own.limit.is_over and own.excess() == 0, "it is enough, though the average does not say so yet"


def test_a_load_that_grows_is_judged_by_what_it_is_since_the_limit_was_passed() -> None:
    own = Own()
    own.run(5.0, 0.1)
    own.run(2.5, 0.75)
    left = 1 - own.excess(1000) / 1000
    assert left * 3 / (1 + left * 3) == pytest.approx(TARGET * 0.5, abs=0.01)


def test_without_own_steps_it_serves_what_it_is_asked_to() -> None:
    own = Own()
    own.run(2, 0.9)
    assert own.limit.is_limited
    own.limit.on_idle()
    assert not own.limit.is_limited and own.excess() == 0 and own.limit.fraction == 0


def test_a_limit_of_one_is_none() -> None:
    own = Own(max_fraction=1.0)
    own.run(5, 0.99)
    assert not own.limit.is_limited and own.excess() == 0


def test_lending_that_hurts_again_and_again_is_tried_ever_more_rarely() -> None:
    """Whenever nothing is refused serving grows to three quarters at once; whenever it is, it ends at once."""
    own = Own()
    turns: list[float] = []
    was_limited = False
    while own.now < 700:
        own.run(0.1, 0.1 if own.limit.is_limited else 0.75)
        if own.limit.is_limited and not was_limited:
            turns.append(own.now)
        was_limited = own.limit.is_limited
    between = [later - earlier for earlier, later in itertools.pairwise(turns)]
    assert between[:4] == sorted(between[:4]) and between[0] >= FIRST_PAUSE_S
    assert all(one >= LONGEST_PAUSE_S for one in between[5:]), "no ping-pong"
    assert len(turns) < 30


def test_pauses_are_short_again_when_lending_went_well() -> None:
    own = Own()
    own.run(1, 0.8)
    own.run(3, 0.1)
    own.run(1, 0.8)
    assert own.limit.is_limited and own.limit.pause_s == 2 * FIRST_PAUSE_S
    own.run(20, 0.1)
    own.run(1, 0.8)
    assert own.limit.is_limited and own.limit.pause_s == FIRST_PAUSE_S


def test_a_load_near_the_limit_does_not_flicker() -> None:
    own = Own()
    own.run(2, 0.6)
    assert own.limit.is_limited
    own.run(30, 0.45)
    assert own.limit.is_limited and not own.limit.is_over, "below the limit, but not well below it"
    own.run(5, 0.3)
    assert not own.limit.is_limited


def test_the_time_per_token_is_a_limit_of_its_own() -> None:
    own = Own(max_tpot_s=0.03)
    own.run(3, 0.2)
    assert not own.limit.is_limited and own.limit.tpot_s == pytest.approx(0.025)
    own.run(3, 0.4)
    assert own.limit.is_limited and own.limit.tpot_s == pytest.approx(STEP_S / 0.6, rel=0.05)
    assert "of at most 30 ms" in own.limit.why()
    tpot_s = own.limit.tpot_s
    assert own.excess() == math.ceil(100 * (tpot_s - TARGET * 0.03) / (tpot_s * own.limit.fraction))


def test_steps_that_are_slow_without_serving_have_nothing_reclaimed() -> None:
    """It would make no token faster; but it lends nothing either."""
    own = Own(max_tpot_s=0.03)
    own.run(4, 0.01, step_s=0.05)
    assert own.limit.is_limited and own.limit.is_over and own.excess() == 0
    own = Own(max_tpot_s=0.03)
    own.run(4, 0.01, step_s=0.05, is_decoding=False)
    assert not own.limit.is_limited, "steps without decodes make nobody wait for a token"


@pytest.mark.parametrize("num_steps", [10, 1_000, 10_000])
def test_a_step_costs_the_same_however_many_came_before(num_steps: int) -> None:
    own = Own()
    own.run(num_steps * STEP_S, 0.0)
    assert calls(lambda: own.limit.on_step(STEP_S, own.served_s, True, own.now)) < 20
