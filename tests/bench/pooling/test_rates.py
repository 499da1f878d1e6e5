"""Rates that rise until nothing grows, rounds, and a bounded time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from distkv.bench.pooling.rates import Rates


class Playing:
    """Contenders that are saturated at these rates; a play takes 10 s."""

    def __init__(self, **saturated: float) -> None:
        self.saturated, self.now_s = saturated, 0.0
        self.plays: list[tuple[float, int]] = []

    def play(self, rate: float, index: int) -> Mapping[str, float]:
        self.plays.append((rate, index))
        self.now_s += 10.0
        return {name: min(rate, most) for name, most in self.saturated.items()}

    def rates(self, given: Sequence[float] = (), rounds: int = 1, budget_s: float | None = None) -> Rates:
        plan = Rates(given, 1.0, rounds, lambda: self.now_s, budget_s)
        plan.run(self.play)
        return plan


def test_rates_double_until_the_last_contender_is_saturated() -> None:
    playing = Playing(off=3.0, contract=6.0)
    plan = playing.rates()
    assert playing.plays == [(1.0, 0), (2.0, 0), (4.0, 0), (8.0, 0), (16.0, 0)]
    assert plan.played == (1.0, 2.0, 4.0, 8.0, 16.0) and not plan.left_out


def test_rates_that_are_given_are_all_played() -> None:
    playing = Playing(off=1.0)
    assert playing.rates((4.0, 2.0, 1.0)).played == (1.0, 2.0, 4.0)
    assert playing.plays == [(1.0, 0), (2.0, 0), (4.0, 0)]


def test_more_rounds_begin_with_the_rates_of_the_goals() -> None:
    playing = Playing(off=1.0)
    playing.rates((1.0, 2.0, 3.0, 4.0), rounds=2)
    assert playing.plays[4:] == [(4.0, 1), (1.0, 1), (3.0, 1), (2.0, 1)]
    playing = Playing(off=1.0)
    playing.rates((1.0,), rounds=3)
    assert playing.plays == [(1.0, 0), (1.0, 1), (1.0, 2)]


def test_what_does_not_fit_the_budget_is_left_out_and_named() -> None:
    playing = Playing(off=1.0)
    plan = playing.rates((1.0, 2.0, 4.0), rounds=3, budget_s=62.0)
    assert playing.plays == [(1.0, 0), (2.0, 0), (4.0, 0), (4.0, 1), (1.0, 1), (2.0, 1)]
    assert plan.left_out == ["round 3 of 4/s", "round 3 of 1/s", "round 3 of 2/s"]
    plan = Playing(off=100.0).rates(budget_s=25.0)
    assert plan.played == (1.0, 2.0) and plan.left_out == ["rates from 4/s on"]
    plan = Playing(off=1.0).rates((1.0, 2.0, 4.0), budget_s=15.0)
    assert plan.played == (1.0,) and plan.left_out == ["2/s", "4/s"]
    assert Playing(off=1.0).rates((1.0, 2.0), budget_s=1.0).played == (1.0,), "the first is always played"


def test_it_is_known_whether_all_were_saturated() -> None:
    assert Playing(off=3.0, contract=6.0).rates().saturated
    assert Playing(off=1.0).rates((2.0, 4.0)).saturated
    assert not Playing(off=3.0, contract=6.0).rates((1.0, 2.0)).saturated
    assert not Playing(off=100.0).rates(budget_s=25.0).saturated


def test_who_serves_nothing_is_saturated() -> None:
    assert Playing(off=0.0).rates().played == (1.0, 2.0)
