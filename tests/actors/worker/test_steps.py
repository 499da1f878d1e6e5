"""The step thread: what it begins and finishes, in which order."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from distkv.actors.worker.steps import Steps
from distkv.wire.messages.counters import Counters
from distkv.wire.messages.from_worker import StepResult
from distkv.wire.messages.to_worker import Forget, Step
from tests.waiting import until


@dataclass
class Begun:
    step: Step
    done: threading.Event = field(default_factory=threading.Event)

    @property
    def is_done(self) -> bool:
        return self.done.is_set()


class Runner:
    """calls: as they came. follows: whether the next step may. Steps are done when the test says so."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.follows = True
        self.begun: dict[int, Begun] = {}

    def begin(self, step: Step, after: Begun | None = None) -> Begun:
        self.calls.append(f"begin {step.step_id}" + (f" after {after.step.step_id}" if after else ""))
        return self.begun.setdefault(step.step_id, Begun(step))

    def may_follow(self, step: Step, begun: Begun) -> bool:
        return self.follows

    def finish(self, begun: Begun) -> tuple[()]:
        begun.done.wait(10)
        self.calls.append(f"finish {begun.step.step_id}")
        return ()

    def forget(self, request_ids: Any, grammar_ids: Any) -> None:
        self.calls.append("forget")


class Results:
    """What was sent: the step, what caused it."""

    def __init__(self) -> None:
        self.sent: list[tuple[int, str]] = []

    def send(self, body: StepResult, cause: str) -> None:
        self.sent.append((body.step_id, cause))


@pytest.fixture
def runner() -> Runner:
    return Runner()


@pytest.fixture
def results() -> Results:
    return Results()


@pytest.fixture
def steps(runner: Runner, results: Results) -> Steps:
    return Steps(results, runner, lambda: 0.0, Counters)  # type: ignore[arg-type]


def step(number: int) -> Step:
    return Step(step_id=number, seqs=())


def turns(steps: Steps, count: int) -> Callable[[], bool]:
    """In a thread, so many turns; whether they are over."""
    thread = threading.Thread(target=lambda: [steps.step() for _ in range(count)], daemon=True)
    thread.start()
    return lambda: not thread.is_alive()


def test_the_next_step_is_begun_while_the_device_computes(steps: Steps, runner: Runner, results: Results) -> None:
    steps.put(step(1), "m1")
    steps.put(step(2), "m2")
    is_over = turns(steps, 3)
    asyncio.run(until(lambda: runner.calls == ["begin 1", "begin 2 after 1"]))
    runner.begun[1].done.set()
    asyncio.run(until(lambda: results.sent == [(1, "m1")]))
    assert not is_over(), "the second is not done, and no third has come"
    runner.begun[2].done.set()
    asyncio.run(until(is_over))
    assert runner.calls == ["begin 1", "begin 2 after 1", "finish 1", "finish 2"]
    assert results.sent == [(1, "m1"), (2, "m2")]


def test_a_step_that_comes_late_still_overlaps(steps: Steps, runner: Runner, results: Results) -> None:
    steps.put(step(1), "m1")
    is_over = turns(steps, 2)
    asyncio.run(until(lambda: runner.calls == ["begin 1"]))
    steps.put(step(2), "m2")
    asyncio.run(until(lambda: runner.calls == ["begin 1", "begin 2 after 1"]))
    runner.begun[1].done.set()
    asyncio.run(until(is_over))
    assert results.sent == [(1, "m1")]


def test_a_step_that_may_not_follow_waits(steps: Steps, runner: Runner) -> None:
    runner.follows = False
    steps.put(step(1), "m1")
    steps.put(step(2), "m2")
    is_over = turns(steps, 3)
    asyncio.run(until(lambda: "begin 1" in runner.calls))
    runner.begun[1].done.set()
    asyncio.run(until(lambda: "begin 2" in runner.calls))
    runner.begun[2].done.set()
    asyncio.run(until(is_over))
    assert runner.calls == ["begin 1", "finish 1", "begin 2", "finish 2"]


def test_what_is_forgotten_is_not_needed_any_more(steps: Steps, runner: Runner) -> None:
    steps.put(step(1), "m1")
    steps.put(Forget(request_ids=("r",)), "m2")
    is_over = turns(steps, 2)
    asyncio.run(until(lambda: "begin 1" in runner.calls))
    runner.begun[1].done.set()
    asyncio.run(until(is_over))
    assert runner.calls == ["begin 1", "finish 1", "forget"]
