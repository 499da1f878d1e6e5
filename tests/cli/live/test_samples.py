from __future__ import annotations

from distkv.cli.live.samples import Loan, Rates, Sample, loans, rates
from tests.cli.statuses import request, status


def sample(taken_s: float, *counters: tuple[str, int, int], state: str = "ready") -> Sample:
    return Sample(taken_s, tuple(status(name, prompt=p, generated=g, state=state) for name, p, g in counters))


def test_rates_are_differences_over_the_time_between():
    before, now = sample(10.0, ("i0", 100, 10), ("i1", 0, 0)), sample(12.0, ("i0", 300, 20), ("i1", 50, 1))
    assert rates(before, now) == Rates(prompt=125.0, generated=5.5)


def test_without_time_there_is_no_rate():
    assert rates(sample(1.0, ("i0", 0, 0)), sample(1.0, ("i0", 9, 9))) is None


def test_only_what_both_samples_have_counts():
    before, now = sample(0.0, ("i0", 100, 10)), sample(1.0, ("i0", 101, 12), ("i1", 5000, 900))
    assert rates(before, now) == Rates(1.0, 2.0)
    assert rates(now, before.__class__(2.0, before.statuses[:0])) == Rates(0.0, 0.0)


def test_one_that_does_not_answer_has_no_counters():
    before = sample(0.0, ("i0", 100, 10))
    silent = sample(1.0, ("i0", 0, 0), state="unreachable")
    assert rates(before, silent) == Rates(0.0, 0.0)
    assert rates(silent, sample(2.0, ("i0", 200, 20))) == Rates(0.0, 0.0)


def test_one_that_restarted_counts_from_its_start():
    assert rates(sample(0.0, ("i0", 900, 90)), sample(2.0, ("i0", 10, 4))) == Rates(5.0, 2.0)


def test_loans_are_by_creditor_and_debtor():
    statuses = [
        status("i0", requests=(request("a", "i0", ("i1", 30), ("i2", 16), ("i1", 16), ("i0", 5)),)),
        status("i1", requests=(request("b", "i1", ("i2", 17)), request("c", "i1"), request("d", "i1", ("i2", 16)))),
        status("i2"),
    ]
    assert loans(statuses) == [
        Loan("i1", "i0", tokens=46, blocks=3, requests=1),
        Loan("i2", "i0", tokens=16, blocks=1, requests=1),
        Loan("i2", "i1", tokens=33, blocks=3, requests=2),
    ]
    assert loans([]) == []
