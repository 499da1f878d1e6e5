"""Processes die and come back, at given times and at random, the gManager too."""

from __future__ import annotations

import pytest

from distkv.errors import ConfigError
from distkv.events import Joined
from distkv.sim.run import SimResult, simulate
from distkv.sim.spec import GMANAGER, Kill, Restart, Slow
from distkv.sim.trace import TraceRequest
from tests.sim.timed.parts import spec, trace


def steady(count: int, per_s: float) -> list[TraceRequest]:
    return [TraceRequest(index / per_s, 200, 20) for index in range(count)]


def joined(result: SimResult) -> list[tuple[float, str]]:
    return [(round(at_s), event.instance) for at_s, _, event in result.events if isinstance(event, Joined)]


def test_requests_do_not_notice_that_there_is_no_gmanager() -> None:
    """Their clients choose instances themselves, and whom they need lends as before; the next one learns everything."""
    requests = [*steady(60, 4.0), TraceRequest(7.0, 2200, 300)]
    requests.sort(key=lambda one: one.arrival_s)
    gone = (Kill(5.0, GMANAGER), Restart(10.0, GMANAGER))
    run = spec(instances=3, faults=gone, keep_events=True, message_s=2e-4)
    result = simulate(requests, run)
    assert [one.failed for one in result.outcomes] == [""] * 61
    assert result.counters.moved_blocks > 0
    assert joined(result) == [(-2, "i0"), (-2, "i1"), (-2, "i2"), (10, "i0"), (10, "i1"), (10, "i2")]
    assert simulate(requests, run) == result


def test_what_a_gmanager_did_not_come_to_answer_is_answered_by_the_client_itself() -> None:
    """A hundred requests arrive in the second in which it dies, some between their question and its answer."""
    requests = [TraceRequest(1.0 + index / 1000, 20, 2) for index in range(100)]
    run = spec(instances=2, faults=(Kill(1.05, GMANAGER),), message_s=5e-3)
    assert all(not one.failed for one in simulate(requests, run).outcomes)


def test_without_a_gmanager_one_whose_instance_dies_goes_to_another() -> None:
    run = spec(instances=2, faults=(Kill(0.5, GMANAGER), Kill(1.01, "i0"), Kill(1.01, GMANAGER)))
    first, second = simulate(trace((1.0, 400, 5), (1.0, 400, 5)), run).outcomes
    assert not first.failed and not second.failed


@pytest.mark.slow
def test_failures_come_at_random_and_as_often_as_wanted() -> None:
    run = spec(instances=4, failures_per_hour=720.0, repair_s=5.0, keep_events=True)
    result = simulate(steady(200, 2.0), run)
    deaths = [name for at_s, name in joined(result) if at_s > 0]
    assert 8 <= len(deaths) <= 35 and set(deaths) == {"i0", "i1", "i2", "i3"}, "20 on average"
    assert result.outcomes == simulate(steady(200, 2.0), run).outcomes
    again = simulate(steady(200, 2.0), spec(instances=4, failures_per_hour=720.0, repair_s=5.0, seed=1))
    assert again.outcomes != result.outcomes
    assert sum(not one.failed for one in result.outcomes) > 180


def test_all_may_be_dead_for_a_while() -> None:
    run = spec(instances=1, failures_per_hour=7200.0, repair_s=2.0)
    assert any(one.failed for one in simulate(steady(40, 2.0), run).outcomes)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"failures_per_hour": -1.0}, "failures_per_hour: expected 0 to 100,000, got -1"),
        ({"failures_per_hour": float("nan")}, "failures_per_hour: expected 0 to 100,000, got nan"),
        ({"repair_s": 0.0}, "repair_s: expected more than 0"),
        ({"faults": (Slow(1.0, 2.0, GMANAGER, 2.0),)}, "only instances can be slowed, i0 to i1"),
        ({"faults": (Kill(1.0, "gmanager-2"),)}, "there is no instance 'gmanager-2'"),
    ],
)
def test_what_cannot_happen_is_refused(fields, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        spec(**fields)
