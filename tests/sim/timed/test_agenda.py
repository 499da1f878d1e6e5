from __future__ import annotations

import math

from distkv.sim.timed.agenda import Agenda, Alarm


def test_what_is_due_happens_in_order_of_time_then_of_being_put_down() -> None:
    agenda, seen = Agenda(), []
    agenda.at(2.0, lambda: seen.append((agenda.now(), "c")))
    agenda.at(1.0, lambda: seen.append((agenda.now(), "a")))
    agenda.at(1.0, lambda: agenda.after(0.5, lambda: seen.append((agenda.now(), "b"))))
    agenda.at(1.2, lambda: seen.append((0.0, "cancelled"))).cancel()
    agenda.run(until=1.9)
    assert seen == [(1.0, "a"), (1.5, "b")] and agenda.now() == 1.9
    agenda.run()
    assert seen[-1] == (2.0, "c") and agenda.now() == 2.0


def test_it_ends_when_that_is_wanted() -> None:
    agenda, seen = Agenda(), list[float]()
    for when in (1.0, 2.0, 3.0):
        agenda.at(when, lambda: seen.append(agenda.now()))
    agenda.run(ended=lambda: len(seen) == 2)
    assert seen == [1.0, 2.0] and agenda.now() == 2.0


def test_what_is_put_down_for_the_past_happens_now() -> None:
    agenda, seen = Agenda(), list[float]()
    agenda.at(5.0, lambda: agenda.at(1.0, lambda: seen.append(agenda.now())))
    agenda.run()
    assert seen == [5.0]


class Machine:
    """What an alarm is for. deadlines: one after the other, as each is kept."""

    def __init__(self, *deadlines: float) -> None:
        self.agenda = Agenda()
        self.deadlines = [*deadlines, math.inf]
        self.rung: list[float] = []
        self.alarm = Alarm(self.agenda, lambda: self.deadlines[0], self.ring, rest_s=0.001)

    def ring(self) -> None:
        self.rung.append(self.agenda.now())
        self.deadlines.pop(0)


def test_an_alarm_rings_at_each_deadline() -> None:
    machine = Machine(1.0, 3.0)
    machine.alarm.check()
    machine.agenda.run()
    assert machine.rung == [1.0, 3.0]


def test_a_deadline_that_has_moved_is_kept() -> None:
    machine = Machine(5.0)
    machine.alarm.check()

    def earlier() -> None:
        machine.deadlines[0] = 2.0
        machine.alarm.check()

    machine.agenda.at(1.0, earlier)
    machine.agenda.run()
    assert machine.rung == [2.0]
    later = Machine(1.0)
    later.alarm.check()
    later.deadlines[0] = 4.0
    later.agenda.run()
    assert later.rung == [4.0]


def test_what_is_always_due_lets_others_be() -> None:
    machine = Machine(0.0, 0.0, 0.0)
    machine.alarm.check()
    machine.agenda.run()
    assert machine.rung == [0.0, 0.001, 0.002]


def test_an_alarm_that_was_stopped_does_not_ring() -> None:
    machine = Machine(1.0)
    machine.alarm.check()
    machine.alarm.stop()
    machine.agenda.run()
    assert machine.rung == []
