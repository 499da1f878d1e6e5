"""The alarm of a state machine: it rings when it is time, and only then."""

from __future__ import annotations

import asyncio
import math

import pytest

from distkv.actors.alarm import READING_S, Alarm
from distkv.actors.task_scope import task_scope
from distkv.clock import MonotonicClock


class Waiting:
    """A state machine that needs the time `deadline`, and nothing after it."""

    def __init__(self, deadline: float) -> None:
        self.clock = MonotonicClock()
        self.deadline = deadline
        self.rang_at: list[float] = []
        self.rang = asyncio.Event()
        self.alarm = Alarm(self.clock, lambda: self.deadline, self.ring)

    def ring(self) -> None:
        self.rang_at.append(self.clock.now())
        self.deadline = math.inf
        self.rang.set()


async def test_it_rings_when_the_deadline_has_come_and_once() -> None:
    waiting = Waiting(MonotonicClock().now() + 0.05)
    due = waiting.deadline
    async with asyncio.timeout(30.0), task_scope() as tasks:
        tasks.create_task(waiting.alarm.run())
        await waiting.rang.wait()
        for _ in range(20):
            await asyncio.sleep(0)
    assert len(waiting.rang_at) == 1 and waiting.rang_at[0] >= due


async def test_what_is_needed_earlier_wakes_it_and_what_is_needed_later_does_not_ring() -> None:
    waiting = Waiting(math.inf)
    async with asyncio.timeout(30.0), task_scope() as tasks:
        tasks.create_task(waiting.alarm.run())
        await asyncio.sleep(0)
        waiting.deadline = waiting.clock.now()
        waiting.alarm.check()
        await waiting.rang.wait()
        waiting.rang.clear()
        waiting.deadline = waiting.clock.now() + 0.3
        waiting.alarm.check()
        await asyncio.sleep(0)
        waiting.deadline = later = waiting.clock.now() + 0.4
        waiting.alarm.check()
        await waiting.rang.wait()
    assert len(waiting.rang_at) == 2 and waiting.rang_at[1] >= later


async def test_what_ringing_raises_is_raised() -> None:
    waiting = Waiting(0.0)

    def ring() -> None:
        raise RuntimeError("cannot go on")

    with pytest.raises(RuntimeError, match="cannot go on"):
        await Alarm(waiting.clock, lambda: 0.0, ring).run()


async def test_one_that_is_always_due_lets_others_run() -> None:
    rings: list[None] = []
    third = asyncio.Event()

    def ring() -> None:
        rings.append(None)
        if len(rings) == 3:
            third.set()

    async with asyncio.timeout(30.0), task_scope() as tasks:
        tasks.create_task(Alarm(MonotonicClock(), lambda: 0.0, ring).run())
        await third.wait()


class Jumping:
    """A clock that goes on by hours while this process is stopped."""

    def __init__(self) -> None:
        self.stopped_s = 0.0

    def now(self) -> float:
        return MonotonicClock().now() + self.stopped_s


async def test_a_process_that_was_stopped_reads_before_it_lets_time_pass() -> None:
    """It lost what it had borrowed, and its clients, by deadlines that answers in its inbox had moved."""
    clock, happened = Jumping(), list[str]()
    deadline, done = clock.now() + 0.02, asyncio.Event()

    def ring() -> None:
        nonlocal deadline
        happened.append("rang")
        deadline = math.inf
        done.set()

    def read() -> None:
        nonlocal deadline
        happened.append("read")
        deadline = clock.now() + 0.02

    def go_on() -> None:
        clock.stopped_s = 3600.0
        asyncio.get_running_loop().call_later(READING_S / 2, read)

    async with asyncio.timeout(30.0), task_scope() as tasks:
        alarm = Alarm(clock, lambda: deadline, ring)
        tasks.create_task(alarm.run())
        asyncio.get_running_loop().call_later(0.01, go_on)
        await done.wait()
    assert happened == ["read", "rang"]
