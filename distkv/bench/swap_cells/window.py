"""What two instances that decode do in a while: their rates, the time between tokens, and where processor time goes."""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping

from distkv.bench.harness.timing.processes import thread_seconds
from distkv.bench.workloads.streams import Streams
from distkv.wire.messages.to_client import Status

BETWEEN = "longest time between tokens, ms"


def rate_case(name: str, when: str) -> str:
    """Of decode throughput."""
    return f"{name} {when}, steps/s"


def beside_case(name: str) -> str:
    """Of processor time: of its rManager, and of its worker without the thread that computes steps."""
    return f"{name} beside its steps, % of a core"


def processor_case(name: str) -> str:
    """Of processor time of both its processes, for each step."""
    return f"{name} processor time of a step, ms"


def part_cases(name: str) -> tuple[str, str, str]:
    """Of what its worker counts of a step: its time in the model, and of that what waits and what serves."""
    return f"{name} model of a step, ms", f"{name} wait in a step, ms", f"{name} serving in a step, ms"


class Window:
    """What instances do from now until `end`."""

    def __init__(self, streams: Mapping[str, Streams], pids: Mapping[str, tuple[int, int]]) -> None:
        self._streams, self._pids = streams, pids
        self._threads = self._seconds()
        self._begun_s = time.perf_counter()
        self.took_s = 0.0

    @property
    def so_far_s(self) -> float:
        """Since it began."""
        return time.perf_counter() - self._begun_s

    def end(self) -> dict[str, float]:
        """By case."""
        self.took_s = self.so_far_s
        now = self._seconds()
        found = dict[str, float]()
        for name, rate in self.rates().items():
            before = self._threads[name]
            used = [seconds - before.get(thread, 0.0) for thread, seconds in now[name].items()]
            found[rate_case(name, "meanwhile")] = rate
            found[beside_case(name)] = 100 * (sum(used) - max(used)) / self.took_s
            found[processor_case(name)] = 1e3 * sum(used) / (rate * self.took_s)
        found[BETWEEN] = 1e3 * max(max(one) for one in self._intervals().values())
        return found

    def rates(self) -> dict[str, float]:
        """Steps per second of each instance: tokens of each of its streams."""
        return {name: 1 / statistics.fmean(found) for name, found in self._intervals().items()}

    def _intervals(self) -> dict[str, list[float]]:
        now = time.perf_counter()
        return {name: streams.intervals_s(self._begun_s, now) for name, streams in self._streams.items()}

    def _seconds(self) -> dict[str, dict[int, float]]:
        """Of each thread of each instance."""
        return {
            name: {k: v for pid in pids for k, v in thread_seconds(pid).items()} for name, pids in self._pids.items()
        }


def parts_between(before: Mapping[str, Status], after: Mapping[str, Status]) -> dict[str, float]:
    """Where the time of a step went between two looks, by case."""
    found = dict[str, float]()
    for name, status in before.items():
        old, new = status.instance.counters, after[name].instance.counters
        steps = max(1, new.steps - old.steps)
        spent = new.model_s - old.model_s, new.attend_wait_s - old.attend_wait_s, new.step_serve_s - old.step_serve_s
        found |= {case: 1e3 * seconds / steps for case, seconds in zip(part_cases(name), spent, strict=True)}
    return found
