"""The figures of a play."""

from __future__ import annotations

import pytest

from distkv.bench.harness.plots.units import better
from distkv.bench.pooling.summary import (
    EACH,
    FIRST,
    FIRST_HIGH,
    GOODPUT,
    LATE,
    PREEMPTIONS,
    REFUSED,
    REMOTE,
    SHORT_HIGH,
    TOKENS,
    UNITS,
    at,
    counted,
    summary,
    unit,
)
from distkv.sim.outcome import DEADLINE, Outcome, Unloaded
from distkv.sim.trace import TraceRequest

UNLOADED = Unloaded(first_s=0.1, first_s_per_token=0.0, per_token_s=0.1)


def test_refused_and_late_requests_are_told_apart_and_late_ones_count_with_their_deadline() -> None:
    outcomes = [
        Outcome(TraceRequest(0.0, 5, 3), [0.5, 0.6, 0.7]),
        Outcome(TraceRequest(1.0, 6, 3), [3.0, 3.5, 4.0]),
        Outcome(TraceRequest(2.0, 50, 9), [1.0, 2.0], failed=DEADLINE),
        Outcome(TraceRequest(3.0, 60, 9), [], failed=DEADLINE),
        Outcome(TraceRequest(4.0, 900, 9), [], failed="RequestRefused"),
    ]
    found = dict(summary(outcomes, UNLOADED, 10.0))
    assert found[TOKENS] == 6 / 5.0 and found[GOODPUT] == 1 / 5.0
    assert found[FIRST] == 2.0 and found[FIRST_HIGH] == 10.0 and found[SHORT_HIGH] == 3.0
    assert found[EACH] == pytest.approx(300.0)
    assert found[REFUSED] == 1 and found[LATE] == 2


def test_where_nobody_is_served_there_are_no_latencies() -> None:
    refused = [Outcome(TraceRequest(0.0, 5, 3), [], failed="RequestRefused")]
    assert dict(summary(refused, UNLOADED, 10.0)) == {TOKENS: 0.0, GOODPUT: 0.0, REFUSED: 1.0, LATE: 0.0}
    late = dict(summary([Outcome(TraceRequest(0.0, 5, 3), [], failed=DEADLINE)], UNLOADED, 10.0))
    assert late[FIRST] == late[FIRST_HIGH] == 10.0 and EACH not in late


def test_the_remote_share_is_that_of_the_time_between() -> None:
    before = {"attended_tokens": 100, "remote_attended_tokens": 50, "preemptions": 1}
    after = {"attended_tokens": 300, "remote_attended_tokens": 100, "preemptions": 4}
    assert dict(counted(before, after)) == {REMOTE: 0.25, PREEMPTIONS: 3.0}
    assert dict(counted(after, after)) == {PREEMPTIONS: 0.0}
    assert dict(counted({"preemptions": 2.0}, {"preemptions": 2.0})) == {PREEMPTIONS: 0.0}


def test_every_case_has_a_unit_with_a_direction() -> None:
    assert all(better(unit(at(case, 0.5))) for case in UNITS)
