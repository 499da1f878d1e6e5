"""`distkv bench gmanager`: what one gManager process costs as a cluster grows to 10,000 instances.

The gManager is a real process on a core of its own; this process plays all instances from another one, over ZeroMQ,
and a third one, beside this, asks.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import msgspec

from distkv.bench.harness.alternate import Samples
from distkv.bench.harness.command import Measured, Say, benchmark
from distkv.bench.harness.kept import keep
from distkv.bench.harness.plots.plot import write_curves
from distkv.bench.harness.quantile import p99
from distkv.bench.harness.report import Goal
from distkv.bench.harness.timing.processes import thread_seconds
from distkv.bench.workloads.deciding.gmanager_joining import join_at_once
from distkv.bench.workloads.deciding.gmanager_load import Fleet
from distkv.bench.workloads.deciding.gmanager_queries import QueryProcess, QueryRun, QueryTimes
from distkv.client.local.child import Child, stop, wait_ready
from distkv.client.local.launch import command, environment

START_S, STOP_S, JOIN_S = 20.0, 20.0, 900.0
QUERIES_PER_S = 100.0
RESULT_S = 0.05
"""How often the other process is asked whether it has ended."""
LEAST_BEATS, MOST_BEATS = 0.95, 1.05
"""Share of the heartbeats that must be sent in time, and no more than that, for the goals to be judged."""
MOST_LATE_MS = 5.0
"""At p99; heartbeats that were late come all at once, and queries wait behind them."""
CPU, BEATS, LATE, OWN_CPU, MEMORY, DEATH, DEATH_CPU, DEATH_BYTES = (
    "CPU",
    "heartbeats",
    "heartbeats sent too late, p99",
    "CPU of this process",
    "most memory so far",
    "one instance dies",
    "CPU of one death",
    "bytes of one death",
)
JOIN, JOIN_CPU, JOIN_BYTES, JOIN_QUERY = (
    "all join at once, until each has the list",
    "CPU of that",
    "bytes of that",
    "longest query meanwhile",
)
MOST_JOINING = 1000
"""Each has its own connection then."""
JOIN_QUERIES_S, QUICK_JOIN_QUERIES_S = 5.0, 0.5
HELP = """A gManager process at 100 to 10,000 instances with a heartbeat a second each: its share of a core, how long a
BorrowQuery and a Locate take meanwhile, what the death of one instance costs, and what it takes until all know each
other where up to 1,000 join at once.

\b
Examples:
  distkv bench gmanager --json gmanager.json --plot gmanager.png
  distkv bench gmanager --quick
"""


class Size(msgspec.Struct, frozen=True):
    """How big the run is. seconds: of each of the `rounds` at each number of instances."""

    instances: tuple[int, ...]
    connections: int
    seconds: float
    rounds: int


FULL = Size((100, 1000, 10_000), connections=100, seconds=6.0, rounds=3)
QUICK = Size((10, 100), connections=10, seconds=0.5, rounds=2)


def measure(say: Say, *, quick: bool) -> Measured:
    """Run it. The process that it started is gone on return."""
    size = QUICK if quick else FULL
    cores = sorted(os.sched_getaffinity(0))
    samples: Samples = keep({})
    try:
        with (
            _gmanager(cores[0], cores[-1]) as gmanager,
            Fleet(gmanager.report["address"], size.connections, period_s=1.0) as fleet,
            QueryProcess(gmanager.report["address"]) as queries,
        ):
            for count in size.instances:
                fleet.grow(count, JOIN_S, say)
                fleet.run(min(2.0, 4 * size.seconds))
                for number in range(size.rounds):
                    say(f"{count:,} instances, round {number + 1} of {size.rounds}")
                    for case, value in _round(fleet, queries, gmanager.pid, size.seconds).items():
                        samples.setdefault(case, {}).setdefault(f"{count:,}", []).append(value)
        for count in (count for count in size.instances if count <= MOST_JOINING):
            for number in range(size.rounds):
                say(f"{count:,} instances join at once, round {number + 1} of {size.rounds}")
                for case, value in _joining(cores, count, quick=quick).items():
                    samples.setdefault(case, {}).setdefault(f"{count:,}", []).append(value)
    finally:
        os.sched_setaffinity(0, cores)
    for variants in samples.values():
        for incomplete in [variant for variant, values in variants.items() if len(values) < size.rounds]:
            del variants[incomplete]
    facts = {
        "instances": ", ".join(f"{count:,}" for count in size.instances),
        "connections": size.connections,
        "heartbeat": "every second, with one changed placement and other free blocks each time",
    }
    return Measured(samples, _goals(samples, size), facts)


def _round(fleet: Fleet, queries: QueryProcess, pid: int, seconds: float) -> dict[str, float]:
    fleet.late_s.clear()
    cpu_s, started, beats, own_s = _busy_seconds(pid), time.perf_counter(), fleet.sent, time.process_time()
    queries.tell(QueryRun(len(fleet), seconds, QUERIES_PER_S))
    while (times := queries.result()) is None:
        fleet.run(RESULT_S)
    passed = time.perf_counter() - started
    found = {
        CPU: 100 * (_busy_seconds(pid) - cpu_s) / passed,
        BEATS: (fleet.sent - beats) / passed,
        LATE: 1e3 * p99(fleet.late_s),
        OWN_CPU: 100 * (time.process_time() - own_s) / passed,
        MEMORY: _most_memory_bytes(pid) / 1e6,
    }
    for kind, values in times.took_s.items():
        found[f"{kind}, median"] = 1e3 * statistics.median(values)
        found[f"{kind}, p99"] = 1e3 * p99(values)
    fleet.settle(JOIN_S)
    before_s = _busy_seconds(pid)
    if (death := fleet.leave(0)) is not None:
        found |= {
            DEATH: 1e3 * death[0],
            DEATH_CPU: 1e3 * (_busy_seconds(pid) - before_s),
            DEATH_BYTES: death[1] / 1e6,
        }
    fleet.rejoin(0)
    fleet.run(0.5)
    return found


def _joining(cores: Sequence[int], count: int, *, quick: bool) -> dict[str, float]:
    """So many join a gManager that knows nobody, and somebody asks it meanwhile."""
    run = QueryRun(count, QUICK_JOIN_QUERIES_S if quick else JOIN_QUERIES_S, QUERIES_PER_S)
    with _gmanager(cores[0], cores[-1]) as gmanager, QueryProcess(gmanager.report["address"]) as queries:
        before_s, answers = _busy_seconds(gmanager.pid), list[QueryTimes]()

        def goes_on() -> bool:
            if not answers and (times := queries.result()) is not None:
                answers.append(times)
            return not answers

        queries.tell(run)
        joined = join_at_once(gmanager.report["address"], count, JOIN_S, goes_on)
        return {
            JOIN: 1e3 * joined.whole_s,
            JOIN_CPU: 1e3 * (_busy_seconds(gmanager.pid) - before_s),
            JOIN_BYTES: joined.received_bytes / 1e6,
            JOIN_QUERY: 1e3 * max(map(max, answers[0].took_s.values())),
        }


def _unit(case: str) -> str:
    if case in (CPU, OWN_CPU):
        return "% of one core"
    return {BEATS: "1/s", DEATH_BYTES: "MB", JOIN_BYTES: "MB", MEMORY: "MB"}.get(case, "ms")


@contextmanager
def _gmanager(core: int, own_core: int) -> Iterator[Child]:
    """A gManager process on this core, all threads of it: they inherit it. This thread, and whatever is started from
    now on, is on `own_core`. Raises StartupFailed."""
    with tempfile.TemporaryDirectory(prefix="distkv-bench-") as scratch:
        os.sched_setaffinity(0, {core})
        child = Child("gmanager", command("gmanager", {"port": 0}), Path(scratch) / "gmanager.log", environment())
        try:
            wait_ready([child], time.monotonic() + START_S)
            os.sched_setaffinity(0, {own_core})
            yield child
            stop([child], STOP_S)
        finally:
            child.close()


def _busy_seconds(pid: int) -> float:
    """Processor time of all threads of a process, to the nanosecond."""
    return sum(thread_seconds(pid).values())


def _most_memory_bytes(pid: int) -> int:
    """The most memory that a process ever had at once."""
    lines = Path(f"/proc/{pid}/status").read_text(encoding="ascii", errors="replace").splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith("VmHWM:"))


def _goals(samples: Samples, size: Size) -> tuple[Goal, ...]:
    most = f"{size.instances[-1]:,}"
    beats = statistics.median(samples[BEATS][most])
    why = ""
    if size.instances[-1] < FULL.instances[-1]:
        why = f"measured with {most} instances only"
    elif not LEAST_BEATS * size.instances[-1] <= beats <= MOST_BEATS * size.instances[-1]:
        own = statistics.median(samples[OWN_CPU][most])
        why = f"this process sent {beats:,.0f} heartbeats a second, at {own:.0f} % of its core"

    late_ms = statistics.median(samples[LATE][most])
    why_queries = why
    if not why and late_ms > MOST_LATE_MS:
        why_queries = f"this process sent heartbeats {late_ms:.3g} ms late at p99: it had no core for itself"

    def at_most(goal: str, case: str, target: float, why: str = why) -> Goal:
        values, unit = samples.get(case, {}).get(most), _unit(case)
        if values is None:
            return Goal(goal, f"at most {target:g} {unit}", "nothing", None, why)
        value = statistics.median(values)
        return Goal(goal, f"at most {target:g} {unit}", f"{value:.3g} {unit}", None if why else value <= target, why)

    return (
        at_most("10,000 instances at a heartbeat a second", CPU, 60.0),
        at_most("BorrowQuery meanwhile, p99", "BorrowQuery, p99", 1.0, why_queries),
        at_most("Locate meanwhile, p99", "Locate, p99", 1.0, why_queries),
        at_most("one of 10,000 dies: CPU until all others know", DEATH_CPU, 50.0),
    )


main = benchmark(
    "gmanager",
    measure,
    HELP,
    unit_of=_unit,
    packages=("msgspec", "pyzmq", "uvloop"),
    plot=partial(write_curves, along="instances"),
)
