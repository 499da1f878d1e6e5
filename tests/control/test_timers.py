"""Timers: each key is due once, at the time set last."""

from __future__ import annotations

import math
from random import Random

from distkv.control.timers import Timers


def test_each_key_is_due_once_at_the_time_that_was_set_last() -> None:
    timers: Timers[str] = Timers()
    assert timers.next_at() == math.inf and timers.take_due(1e9) == []
    timers.set("a", 3.0)
    timers.set("b", 2.0)
    timers.set("a", 1.0)
    timers.bring_forward("b", 5.0)
    timers.bring_forward("c", 4.0)
    timers.set("d", 0.5)
    timers.cancel("d")
    timers.cancel("nobody")
    timers.validate()
    assert timers.next_at() == 1.0 and "a" in timers and "d" not in timers
    assert timers.take_due(0.9) == [] and timers.take_due(2.0) == ["a", "b"] and timers.take_due(9.0) == ["c"]
    assert timers.next_at() == math.inf


def test_as_a_sorted_list_would_have_it_and_without_growing() -> None:
    random, timers, model = Random(3), Timers[int](), dict[int, float]()
    for step in range(5000):
        key, at = random.randrange(40), random.random() * 10 + step / 100
        if random.random() < 0.2:
            timers.cancel(key)
            model.pop(key, None)
        else:
            timers.set(key, at)
            model[key] = at
        now = step / 100
        due = sorted((when, one) for one, when in model.items() if when <= now)
        assert timers.take_due(now) == [one for _, one in due]
        for _, one in due:
            del model[one]
        assert timers.next_at() == min(model.values(), default=math.inf)
        timers.validate()
    assert len(timers._heap) <= 2 * 40 + 8
