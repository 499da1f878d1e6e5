"""`distkv bench concurrency`: what a cluster gives over HTTP to 64, 250, 1,000 and 5,000 requests at once.

All requests are alike and streamed, from a load generator that is a process of its own. A level is over when every
request is answered, or when its time is up. Meanwhile the member list is watched, and so is the processor time of each
process.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

import click
import msgspec

from distkv.actors.task_scope import task_scope
from distkv.bench.harness.alternate import Samples, alternate, paired_ratio
from distkv.bench.harness.command import Measured, Say, benchmark
from distkv.bench.harness.machine import raise_descriptor_limit
from distkv.bench.harness.report import Goal, at_least
from distkv.bench.harness.timing.processes import cpu_seconds
from distkv.bench.workloads.http_load import LoadResult
from distkv.client.async_client import AsyncClient
from distkv.client.local.cluster import LocalCluster
from distkv.demo.random_checkpoint import make_checkpoint
from distkv.errors import DistKVError

INSTANCES = 2
KV_TOKENS = 65536
LEVELS = (64, 250, 1000, 5000)
QUICK_LEVELS = (16, 64)
LEAST_REQUESTS, QUICK_REQUESTS = 20000, 64
EACH = 4
"""Requests of each of those at once, one after the other on its connection, at least: begin and end are not all."""
PROMPT_TOKENS = MAX_TOKENS = 16
DEADLINE_S = 120.0
WATCH_S = 0.25
GOAL_SHARE = 0.95
WORKER = "worker"
MANY = 1000
"""Requests at once for which the goal is stated."""
SPARE_DESCRIPTORS = 512
TOKENS, FIRST, CPU = "output tokens/s", "time to first token, median", "processor time per token, all processes"
BY_WORK = "the same, to that of the workers"
"""Their work for a token is the same however many requests wait, as long as batches are full; what the machine's
neighbours take it longer, they take all processes longer."""
UNITS = {TOKENS: "tokens/s", FIRST: "s", CPU: "ms", BY_WORK: "times"}
HELP = """Tokens per second of two instances behind a gateway, over HTTP, for several numbers of requests at once; how
many requests were not answered, and how often an instance was not ready meanwhile. A random model of two layers: what
is measured is everything around the model.

\b
Examples:
  distkv bench concurrency --json concurrency.json --plot concurrency.png
  distkv bench concurrency --quick
"""


class Levels:
    """One cluster, and what was seen of it by number of requests at once."""

    def __init__(self, cluster: LocalCluster, least_requests: int) -> None:
        self._cluster, self._least_requests = cluster, least_requests
        assert cluster.gateway is not None
        self._pids = {"gateway": cluster.gateway.pid, "gManager": cluster.gmanager.pid}
        for status in cluster.status()["instances"]:
            self._pids[f"rManager {status['instance_id']}"] = status["pid"]
            self._pids[f"{WORKER} {status['instance_id']}"] = status["worker_pid"]
        self.unanswered: dict[int, int] = {}
        self.problems: dict[int, dict[str, int]] = {}
        self.refused: dict[int, int] = {}
        self.flaps: dict[int, int] = {}
        self.cpu_ms: dict[str, dict[str, float]] = {}
        self.generator_share = 0.0

    def measure(self, concurrency: int) -> Mapping[str, float]:
        """All requests of a level."""
        before = {name: cpu_seconds(pid) for name, pid in self._pids.items()}
        load, flaps = asyncio.run(self._watched(concurrency))
        tokens = max(1, load.finished) * MAX_TOKENS
        used = {name: 1e3 * (cpu_seconds(pid) - before[name]) / tokens for name, pid in self._pids.items()}
        self.cpu_ms[f"{concurrency:,} at once"] = {name: round(value, 4) for name, value in used.items()}
        _add(self.unanswered, concurrency, load.unfinished + sum(load.failed.values()))
        _add(self.refused, concurrency, load.refused)
        _add(self.flaps, concurrency, flaps)
        if load.failed:
            self.problems[concurrency] = load.failed
        self.generator_share = max(self.generator_share, load.cpu_s / load.seconds)
        return {
            TOKENS: tokens / load.seconds,
            FIRST: statistics.median(load.first_s or [load.seconds]),
            CPU: sum(used.values()),
            BY_WORK: sum(used.values()) / max(1e-9, sum(ms for name, ms in used.items() if name.startswith(WORKER))),
        }

    async def _watched(self, concurrency: int) -> tuple[LoadResult, int]:
        ended = asyncio.Event()
        async with AsyncClient(self._cluster.address) as client, task_scope() as tasks:
            watching = tasks.create_task(self._flaps(client, ended))
            load = await self._load(concurrency)
            ended.set()
            return load, await watching

    async def _load(self, concurrency: int) -> LoadResult:
        arguments = {
            "concurrency": concurrency,
            "requests": max(EACH * concurrency, self._least_requests),
            "prompt-tokens": PROMPT_TOKENS,
            "max-tokens": MAX_TOKENS,
            "deadline-s": DEADLINE_S,
        }
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-P",
            "-m",
            "distkv.bench.workloads.http_load",
            urlsplit(self._cluster.http_url).netloc,
            *(f"--{name}={value}" for name, value in arguments.items()),
            stdout=asyncio.subprocess.PIPE,
        )
        try:
            out, _ = await process.communicate()
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        return msgspec.json.decode(out, type=LoadResult)

    async def _flaps(self, client: AsyncClient, ended: asyncio.Event) -> int:
        """How often an instance stopped being ready, as the gManager tells."""
        flaps, ready = 0, INSTANCES
        while not ended.is_set():
            with suppress(DistKVError):
                now = sum(member.state == "ready" for member in await client.members())
                flaps += max(0, ready - now)
                ready = now
            with suppress(TimeoutError):
                async with asyncio.timeout(WATCH_S):
                    await ended.wait()
        return flaps


def _add(counts: dict[int, int], key: int, more: int) -> None:
    counts[key] = counts.get(key, 0) + more


def measure(say: Say, *, quick: bool, levels: Sequence[int], rounds: int) -> Measured:
    """Run it."""
    levels = sorted(levels) or (QUICK_LEVELS if quick else LEVELS)
    descriptors = raise_descriptor_limit()
    fitting = [level for level in levels if level + SPARE_DESCRIPTORS <= descriptors]
    least = QUICK_REQUESTS if quick else LEAST_REQUESTS
    with tempfile.TemporaryDirectory(prefix="distkv-bench-") as scratch:
        model = make_checkpoint(Path(scratch) / "model", text_for_tokenizer=HELP)
        say("starting instances")
        with LocalCluster(
            model,
            INSTANCES,
            KV_TOKENS,
            threads=1,
            gateway_options={"max_concurrent_requests": 2 * max(levels)},
            instance_options={"max_waiting": 2 * max(levels)},
            log_level="warning",
        ) as cluster:
            seen = Levels(cluster, least)
            variants = {f"{level:,} at once": partial(seen.measure, level) for level in fitting}
            begun_s = time.monotonic()
            samples = alternate(variants, rounds, warmups=0, report=say)
            measured_s = round(time.monotonic() - begun_s)
    facts = {
        "measured_s": measured_s,
        "model": "random Llama, float32, hidden 64, layers 2",
        "gates": "places at the gateway and in the queues for all of them",
        "requests": f"{PROMPT_TOKENS} tokens of prompt, {MAX_TOKENS} of output, streamed",
        "requests_of_a_level": f"{EACH} times those at once, at least {least:,}",
        "generator_share_of_a_core": round(seen.generator_share, 2),
        "cpu_ms_per_token": {name: str(used) for name, used in seen.cpu_ms.items()},
        "refused": {f"{level:,} at once": str(count) for level, count in seen.refused.items()},
        "problems": {f"{level:,} at once": str(found) for level, found in seen.problems.items()},
    }
    return Measured(samples, _goals(levels, samples, seen, descriptors), facts)


def _goals(levels: Sequence[int], samples: Samples, seen: Levels, descriptors: int) -> tuple[Goal, ...]:
    rates = samples[TOKENS]
    goals = []
    for index, level in enumerate(levels):
        name = f"{level:,} at once"
        goal, target = f"throughput of {name} to the best of no more", f"at least {GOAL_SHARE:g}"
        if name not in rates:
            goals.append(Goal(goal, target, "", None, f"{descriptors:,} open files are allowed"))
        elif level >= MANY:
            no_more = [f"{one:,} at once" for one in levels[: index + 1]]
            best = max(no_more, key=lambda one: statistics.median(rates[one]))
            goals.append(at_least(goal, paired_ratio(rates[name], rates[best]), GOAL_SHARE))
    for what, counts in (("requests without an answer", seen.unanswered), ("instances not ready", seen.flaps)):
        measured = ", ".join(f"{count} at {level:,}" for level, count in counts.items())
        goals.append(Goal(what, "none", measured, not any(counts.values())))
    return tuple(goals)


main = benchmark(
    "concurrency",
    measure,
    HELP,
    [
        click.Option(
            ["--level", "levels"],
            type=click.IntRange(min=1),
            multiple=True,
            help="Requests at once; may be given again. 64, 250, 1,000 and 5,000 if not given.",
        ),
    ],
    unit_of=UNITS.__getitem__,
    packages=("pyzmq", "uvloop"),
    rounds=(1, 1),
)
