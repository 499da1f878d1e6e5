"""The worker's step thread: Steps in order, one being prepared while the device computes the one before."""

from __future__ import annotations

import queue
import time
from collections.abc import Callable
from dataclasses import dataclass

from distkv.engine.step.runner import Begun, StepRunner
from distkv.log.lines import about
from distkv.wire.messages.counters import Counters
from distkv.wire.messages.from_worker import StepResult
from distkv.wire.messages.to_worker import Forget, Step
from distkv.wire.worker_pipe import WorkerEnd

LOOK_S = 50e-6
"""Between two looks whether the device is done, while no other Step has come."""


@dataclass(slots=True)
class _UnderWay:
    """cause: of its Step."""

    begun: Begun
    cause: str


class Steps:
    """counters: of this thread. served_s(): seconds that peers were served for so far. all_counters(): of the whole
    worker, for results."""

    def __init__(
        self,
        results: WorkerEnd,
        runner: StepRunner,
        served_s: Callable[[], float],
        all_counters: Callable[[], Counters],
    ) -> None:
        self.counters = Counters()
        self._results, self._runner = results, runner
        self._served_s, self._all_counters = served_s, all_counters
        self._commands: queue.SimpleQueue[tuple[Step | Forget, str]] = queue.SimpleQueue()
        self._under_way: _UnderWay | None = None
        self._computed_until_s = self._served_until_s = 0.0

    def put(self, command: Step | Forget, cause: str) -> None:
        """One more, in order, and the id of its message. Any thread may call."""
        self._commands.put((command, cause))

    def run(self) -> None:
        """Until the process ends."""
        while True:
            self.step()

    def step(self) -> None:
        """Begin one Step or carry out one Forget, and finish the Step before."""
        command, cause = self._next() or (None, "")
        before = self._under_way
        if before is not None and not (isinstance(command, Step) and self._runner.may_follow(command, before.begun)):
            self._finish()
            before = None
        if isinstance(command, Forget):
            self._runner.forget(command.request_ids, command.grammar_ids)
        elif command is not None:
            if before is None:
                self._computed_until_s, self._served_until_s = time.perf_counter(), self._served_s()
            with about(cause=cause):
                begun = self._runner.begin(command, None if before is None else before.begun)
            if before is not None:
                self._finish()
            self._under_way = _UnderWay(begun, cause)

    def _next(self) -> tuple[Step | Forget, str] | None:
        """The next command; None if the Step under way is done before one comes."""
        if self._under_way is None:
            return self._commands.get()
        while True:
            try:
                if self._under_way.begun.is_done:
                    return None
                return self._commands.get(timeout=LOOK_S)
            except queue.Empty:
                pass

    def _finish(self) -> None:
        """Tell what came of the Step under way. It took the time since it began, or the one before was done."""
        assert self._under_way is not None
        one, self._under_way = self._under_way, None
        with about(cause=one.cause):
            outcome = self._runner.finish(one.begun)
            now_s, served_s = time.perf_counter(), self._served_s()
            self.counters.step_serve_s += served_s - self._served_until_s
            result = StepResult(
                step_id=one.begun.step.step_id,
                results=outcome,
                compute_s=now_s - self._computed_until_s,
                counters=self._all_counters(),
            )
            self._computed_until_s, self._served_until_s = now_s, served_s
        self._results.send(result, one.cause)
