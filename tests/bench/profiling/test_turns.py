"""Cases are visited by turns, and what disturbs some of the visits does not count."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from distkv.bench.profiling.plan import FULL, Budget
from distkv.bench.profiling.turns import ALONE, Case, Turns
from tests.bench.profiling.law import MS, Disturbed, Law, pair

CASES = Case((64,)), Case((64, 64)), Case((64,), 2), Case((64,), 2, True), ALONE
SIZES = msgspec.structs.replace(FULL, rounds=8)


def visited(disturbed: Disturbed = lambda: 1.0, budget_s: float = 1e6, needed: int = 1) -> tuple[Turns, list[str]]:
    said: list[str] = []
    budget = Budget(budget_s)
    budget.stage(1.0)
    turns = Turns(*pair(Law(), disturbed), SIZES, 16, budget, said.append)
    asyncio.run(turns.take(CASES[:needed], CASES[needed:]))
    return turns, said


def test_who_does_what_is_seen() -> None:
    turns, said = visited()
    alone, remote, busy, own = (turns.seen(CASES[index]) for index in (0, 2, 3, 4))
    assert alone.step_s == alone.own_s == pytest.approx(10.5 * MS + 64 * 2e-6) and alone.wait_s == 0
    assert remote.wait_s > 0 and remote.step_s == pytest.approx(remote.own_s + remote.wait_s)
    assert busy.step_s > remote.step_s and busy.creditor_s > own.creditor_s > 0
    assert remote.creditor_s == own.step_s == 0
    assert said[0] == "decode steps, round 1 of at most 8, 0% of the time" and len(said) == 8


def test_a_disturbance_does_not_count_even_if_it_meets_a_case_in_a_quarter_of_the_rounds() -> None:
    """Of eight rounds two take thrice as long, and of the others here and there a visit."""
    visits = iter(range(10_000))

    def disturbed() -> float:
        visit = next(visits)
        return 3.0 if (visit // len(CASES)) % 8 > 5 or visit % 23 == 3 else 1.0

    quiet, noisy = visited()[0], visited(disturbed)[0]
    for case in CASES:
        assert noisy.seen(case).step_s == pytest.approx(quiet.seen(case).step_s)
        assert noisy.seen(case).creditor_s == pytest.approx(quiet.seen(case).creditor_s)


def test_without_time_only_what_is_needed_is_visited_once() -> None:
    turns, _ = visited(budget_s=1e-9, needed=2)
    assert [case in turns for case in CASES] == [True, True, False, False, False]


def test_a_case_that_is_named_twice_is_visited_once_a_round() -> None:
    debtor, creditor = pair(Law())
    budget = Budget(1e6)
    budget.stage(1.0)
    turns = Turns(debtor, creditor, SIZES, 16, budget, lambda _: None)
    asyncio.run(turns.take(CASES[:1], CASES[:1]))
    assert debtor.timed == SIZES.rounds  # type: ignore[attr-defined]
