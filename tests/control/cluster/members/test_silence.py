"""Silence: judged by the gManager's own attentive time, and by each instance's own heartbeats."""

from __future__ import annotations

import math

import pytest

from distkv import events
from distkv.control.cluster.gmanager import MOST_JUDGED
from distkv.control.cluster.silence import ATTENTIVE_STEP_S, MOST_PERIOD_S, Deadlines
from distkv.control.commands import GManagerRequested, Tick
from distkv.wire.messages.to_gmanager import Join, Leave
from tests.control.cluster.managed import Managed
from tests.control.parts import make_member

NAMES = tuple("abcde")


@pytest.fixture
def beating(managed: Managed) -> Managed:
    """Five instances that have just been heard."""
    for name in NAMES:
        managed.join(name)
    for name in NAMES:
        managed.beat(name)
    return managed


def states(managed: Managed) -> set[str]:
    return set(managed.states().values())


@pytest.mark.parametrize("seconds", [1.5, 5.0, 1000.0])
def test_after_a_stall_the_first_queued_heartbeat_makes_nobody_dead(beating: Managed, seconds: float) -> None:
    beating.stall(seconds)
    for name in NAMES:  # they wait in the inbox, one behind the other
        beating.beat(name)
        assert states(beating) == {"ready"}
    beating.tick()
    assert states(beating) == {"ready"} and not beating.events(events.InstanceStateChanged)


def test_nor_does_the_first_tick_after_a_stall(beating: Managed) -> None:
    beating.stall(60.0)
    beating.tick()
    assert states(beating) == {"ready"}


def test_while_messages_wait_nobody_is_judged(beating: Managed) -> None:
    """It ticks only when its inbox is empty; until then it may be the next message that says that one lives."""
    for _ in range(100):
        beating.clock.advance(0.1)
        beating.beat("a")
    assert states(beating) == {"ready"}
    beating.tick()
    assert beating.states() == {"a": "ready"} | dict.fromkeys("bcde", "dead")


def test_after_a_stall_all_of_their_patience_begins_anew(beating: Managed) -> None:
    beating.tick(1.0)
    beating.beat("a")
    beating.tick(2.9)
    assert set(beating.states().values()) == {"unreachable"}
    beating.stall(2.0)
    beating.tick()
    beating.tick(3.7)
    assert "dead" not in states(beating)
    beating.tick(0.3)
    assert states(beating) == {"dead"}


def test_short_gaps_are_taken_off(beating: Managed) -> None:
    """Ticks that come half a second late, again and again, as on a machine without time for it."""
    for _ in range(15):
        beating.stall(2 * ATTENTIVE_STEP_S)
        beating.tick()
    assert "dead" not in states(beating)
    beating.stall(2 * ATTENTIVE_STEP_S)
    beating.tick()
    assert states(beating) == {"dead"}, "but they do not hide the dead for ever"


def test_it_asks_to_be_woken_as_long_as_anybody_lives_and_not_longer(beating: Managed) -> None:
    assert beating.gm.next_deadline() - beating.clock.now() <= ATTENTIVE_STEP_S
    for name in NAMES:
        beating.hear(name, Leave(instance_id=name, incarnation=1))
    beating.tick(310.0)
    assert beating.states() == {} and beating.gm.next_deadline() == float("inf")


@pytest.mark.parametrize(
    ("heartbeat_s", "unreachable_s", "dead_s"),
    [(0.0, 1.5, 4.0), (0.5, 1.5, 4.0), (0.001, 0.3, 4.0), (2.0, 6.0, 8.0), (10.0, 30.0, 40.0), (1e9, 180.0, 240.0)],
)
def test_each_is_judged_by_its_own_heartbeats(
    managed: Managed, heartbeat_s: float, unreachable_s: float, dead_s: float
) -> None:
    assert MOST_PERIOD_S == 60.0
    managed.join("a", heartbeat_s=heartbeat_s)
    managed.beat("a")
    seen: dict[str, float] = {}
    started = managed.clock.now()
    while managed.states()["a"] != "dead":
        managed.tick(ATTENTIVE_STEP_S / 5)
        seen.setdefault(managed.states()["a"], managed.clock.now() - started)
    assert seen["unreachable"] == pytest.approx(unreachable_s, abs=0.06)
    assert seen["dead"] == pytest.approx(dead_s, abs=0.06)


def test_unequal_heartbeats_live_together(managed: Managed) -> None:
    managed.join("slow", heartbeat_s=3.0)
    managed.join("fast", heartbeat_s=0.1)
    for tick in range(400):
        if tick % 30 == 0:
            managed.beat("slow")
        managed.beat("fast")
        managed.tick(0.1)
        assert managed.states() == {"fast": "ready", "slow": "ready"}


def test_thousands_that_die_at_once_hold_nobody_up(managed: Managed) -> None:
    for index in range(1000):
        name = f"i{index}"
        joined = GManagerRequested(name, name.encode(), Join(member=make_member(name), compat="model"))
        managed.gm.handle(joined, managed.clock.now())
    managed.tick(3.9)
    judged = []
    while sum(judged) < 1000:
        managed.commands = managed.gm.handle(Tick(), managed.clock.advance(0.1))
        judged.append(len(managed.events(events.InstanceStateChanged)))
        assert managed.gm.next_deadline() <= managed.clock.now() + ATTENTIVE_STEP_S
    assert max(judged) == MOST_JUDGED
    assert states(managed) == {"dead"}


def test_a_deadline_that_is_put_off_over_and_over_takes_no_memory() -> None:
    deadlines = Deadlines()
    for at in range(1000):
        deadlines.put("a", 300.0 + at)
    assert sum(map(len, deadlines._names.values())) == 1
    deadlines.drop("a")
    assert deadlines.pop(1e6) is None and deadlines.next_s() == math.inf and not deadlines._names
