"""`distkv bench simulator`: how fast clusters are simulated, by their size.

Every instance decodes a full batch of long outputs, so that decode is quiet and most results are handled together. One
that is handled by itself costs what it costs a real rManager to decide, see `distkv bench control`.
"""

from __future__ import annotations

import resource
import statistics
import time
from collections.abc import Callable, Mapping
from functools import partial

from distkv.bench.harness.alternate import alternate
from distkv.bench.harness.command import Measured, Say, benchmark
from distkv.bench.harness.plots.plot import write_curves
from distkv.bench.harness.report import Goal
from distkv.sim.collecting import rarely_collected
from distkv.sim.profiles.built_in import built_in, kv_tokens
from distkv.sim.spec import SimSpec
from distkv.sim.timed.cluster import READY_S, TimedCluster
from distkv.sim.trace import TraceRequest

PROFILE = "a100-llama2-7b"
SIZES, QUICK_SIZES = (1, 8, 32, 128, 1000), (1, 4)
BATCH, QUICK_BATCH = 64, 4
PROMPT_TOKENS = 64
ARRIVING_S, SETTLED_S = 0.3, 2.0
"""From the first arrival: all have come by then; all decode by then."""
JOINING_S = 0.5
"""Between two looks at whether all instances know each other: a large member list takes seconds."""
LEAST_S = 2.0
"""Measured: four heartbeats of each. What is kept at the end counts too: it is handed over before the clock stops."""
SPEED, WALL = "simulated seconds a second of one core", "simulated seconds a second, by the clock"
TOKEN, MEMORY, KEPT, RUNNING = "a decoded token", "memory", "results handled together", "running in each"
UNITS: Mapping[str, str] = {
    SPEED: "of real time",
    WALL: "of real time",
    TOKEN: "µs of a core",
    MEMORY: "MB",
    KEPT: "%",
    RUNNING: "sequences",
}
GOALS: Mapping[int, float] = {32: 5.0, 1000: 0.2}
HELP = f"""How many simulated seconds pass in one second of one core, and what memory that takes: instances of
{PROFILE} that each decode {BATCH} requests, from 1 to 1,000 of them. A second of a core is one that this process has
computed for; what other programs take counts by the clock only.

\b
Examples:
  distkv bench simulator --json simulator.json --plot simulator.png
  distkv bench simulator --quick
"""


def measure(say: Say, *, quick: bool) -> Measured:
    """Run it."""
    sizes, rows = (QUICK_SIZES, QUICK_BATCH) if quick else (SIZES, BATCH)
    variants = {f"{size:,}": _player(size, rows, say) for size in sizes}
    with rarely_collected():
        samples = alternate(variants, 1, warmups=0)
    facts = {"profile": PROFILE, "batch": rows, "memory": "the most that this process had by then"}
    goals = tuple(_goal(size, least, samples[SPEED]) for size, least in GOALS.items() if f"{size:,}" in samples[SPEED])
    return Measured(samples, goals, facts)


def _player(instances: int, batch: int, say: Say) -> Callable[[], Mapping[str, float]]:
    def play() -> Mapping[str, float]:
        say(f"{instances:,} instances")
        spec = SimSpec(instances=instances, kv_tokens=kv_tokens(PROFILE), profile=built_in(PROFILE))
        cluster = TimedCluster(spec)
        arriving = batch * instances
        gap_s = ARRIVING_S / arriving
        longest = spec.kv_tokens // batch
        cluster.clients.play(
            [TraceRequest(index * gap_s, PROMPT_TOKENS, longest - PROMPT_TOKENS) for index in range(arriving)], READY_S
        )
        settled_s = READY_S + SETTLED_S
        cluster.agenda.run(settled_s)
        while any(len(node.rm.members) < instances - 1 for node in cluster.processes.nodes.values()):
            settled_s += JOINING_S
            cluster.agenda.run(settled_s)
        before = cluster.count().generation_tokens
        results, kept = cluster.forward.num_results, cluster.forward.num_kept
        simulated_s = min(10.0, max(LEAST_S, 100.0 / instances))
        begun_s, begun_cpu_s = time.perf_counter(), time.process_time()
        cluster.agenda.run(settled_s + simulated_s)
        after = cluster.count().generation_tokens
        took_s, took_cpu_s = time.perf_counter() - begun_s, time.process_time() - begun_cpu_s
        tokens = after - before
        peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        share = (cluster.forward.num_kept - kept) / max(1, cluster.forward.num_results - results)
        return {
            SPEED: simulated_s / took_cpu_s,
            WALL: simulated_s / took_s,
            TOKEN: 1e6 * took_cpu_s / max(1, tokens),
            MEMORY: peak_mb,
            KEPT: 100 * share,
            RUNNING: statistics.fmean(len(node.rm.state.running()) for node in cluster.processes.nodes.values()),
        }

    return play


def _goal(size: int, least: float, speeds: Mapping[str, list[float]]) -> Goal:
    speed = statistics.median(speeds[f"{size:,}"])
    return Goal(f"{SPEED}, {size:,} instances", f"at least {least:g}", f"{speed:.2g}", speed >= least)


main = benchmark(
    "simulator",
    measure,
    HELP,
    unit_of=UNITS.__getitem__,
    plot=partial(write_curves, along="instances"),
)
