from __future__ import annotations

import pytest

from distkv.sim.timed.agenda import Agenda
from distkv.sim.timed.sharing import Resource, Sharing


class Shared:
    """Jobs by name, and when each was done."""

    def __init__(self) -> None:
        self.agenda = Agenda()
        self.sharing = Sharing(self.agenda)
        self.done: dict[str, float] = {}

    def begin(self, at: float, name: str, work: float, *resources: Resource) -> None:
        def finish() -> None:
            self.done[name] = self.agenda.now()

        self.agenda.at(at, lambda: self.sharing.begin(work, resources, finish))


def test_alone_work_takes_what_it_takes() -> None:
    shared = Shared()
    shared.begin(1.0, "a", 3.0, Resource(2.0))
    shared.agenda.run()
    assert shared.done == {"a": 2.5}


def test_two_that_share_a_link_get_half_of_it_each() -> None:
    shared, link = Shared(), Resource()
    shared.begin(0.0, "a", 1.0, link)
    shared.begin(0.0, "b", 1.0, link)
    shared.agenda.run()
    assert shared.done == {"a": 2.0, "b": 2.0}


def test_who_comes_later_slows_the_other_from_then_on() -> None:
    shared, link = Shared(), Resource()
    shared.begin(0.0, "a", 2.0, link)
    shared.begin(1.0, "b", 2.0, link)
    shared.agenda.run()
    assert shared.done == pytest.approx({"a": 3.0, "b": 4.0})


def test_the_narrowest_resource_counts() -> None:
    shared, wide, narrow, other = Shared(), Resource(4.0), Resource(1.0), Resource(4.0)
    shared.begin(0.0, "a", 2.0, wide, narrow)
    shared.begin(0.0, "b", 2.0, narrow, other)
    shared.begin(0.0, "c", 2.0, wide)
    shared.agenda.run()
    assert shared.done == pytest.approx({"a": 4.0, "b": 4.0, "c": 1.0})


def test_a_capacity_that_changes_changes_what_is_under_way() -> None:
    shared, engine = Shared(), Resource()
    shared.begin(0.0, "a", 2.0, engine)

    def slow_down() -> None:
        engine.capacity = 0.5
        shared.sharing.changed(engine)

    shared.agenda.at(1.0, slow_down)
    shared.agenda.run()
    assert shared.done == {"a": 3.0}


def test_what_was_aborted_leaves_its_share_to_others() -> None:
    shared, link = Shared(), Resource()
    shared.begin(0.0, "a", 2.0, link)
    job = shared.sharing.begin(5.0, (link,), lambda: shared.done.update(b=0.0))
    shared.agenda.at(1.0, lambda: shared.sharing.abort(job))
    shared.agenda.run()
    assert shared.done == {"a": 2.5}


def test_no_work_is_done_at_once() -> None:
    shared = Shared()
    shared.begin(1.0, "a", 0.0, Resource())
    shared.agenda.run()
    assert shared.done == {"a": 1.0}
