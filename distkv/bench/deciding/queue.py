"""`distkv bench queue`: tokens per second of a running batch with none, 100, 1,000 and 5,000 requests queued behind it.

One instance, whose batch is full. A token costs more the longer its context is, so every rate is of the same tokens:
those from START on, of requests that are alike, with each queue and without.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

import click

from distkv.actors.task_scope import task_scope
from distkv.bench.harness.alternate import alternate, paired_ratio
from distkv.bench.harness.command import Measured, Say, benchmark
from distkv.bench.harness.report import Goal, at_least
from distkv.bench.harness.timing.processes import cpu_seconds
from distkv.bench.workloads.streams import Streams
from distkv.client.async_client import AsyncClient
from distkv.client.local.cluster import LocalCluster
from distkv.demo.random_checkpoint import make_checkpoint
from distkv.wire.messages.to_client import InstanceStatus

BATCH = 16
QUEUED = (100, 1000, 5000)
QUICK_QUEUED = (20, 100)
KV_TOKENS = 2**19
PROMPT = list(range(1, 17))
START, QUICK_START = 2048, 512
TOKENS, QUICK_TOKENS = 512, 128
PATIENCE_S = 60.0
POLL_S = 0.05
GOAL = 0.97
RATE, CPU = "output tokens/s of the batch", "processor time per token, rManager"
UNITS = {RATE: "tokens/s", CPU: "ms"}
TICK_S = 0.01
"""What the system counts processor time in."""
HELP = """Tokens per second of a full batch with requests queued behind it, beside its rate for the same tokens without
them. A random model of two layers: what is measured is everything around the model.

\b
Examples:
  distkv bench queue --json queue.json --plot queue.png
  distkv bench queue --quick
"""


class Batch:
    """A full batch of one instance. slow: the queues that were not there in time."""

    def __init__(self, cluster: LocalCluster, start: int, tokens: int) -> None:
        """What is measured is `tokens` tokens of each sequence, after the first `start`."""
        (instance,) = cluster.status()["instances"]
        self._address, self._pid = cluster.address, int(instance["pid"])
        self._start, self._tokens = start, tokens
        self.slow: dict[int, str] = {}

    def measure(self, queued: int) -> Mapping[str, float]:
        """With so many requests behind it."""
        return asyncio.run(self._measure(queued))

    async def _measure(self, queued: int) -> Mapping[str, float]:
        async with AsyncClient(self._address) as client, task_scope() as tasks:
            await self._until(client, 0, 0)
            batch, queue = Streams(client, tasks), Streams(client, tasks)
            batch.start([PROMPT] * BATCH, KV_TOKENS // (2 * BATCH))
            await batch.begun()
            queue.start([PROMPT] * queued, 1)
            if not await self._until(client, BATCH, queued):
                self.slow[queued] = f"{queued:,} requests were not queued within {PATIENCE_S:g} s"
            elif batch.least >= self._start:
                self.slow[queued] = f"{queued:,} requests were not queued when the batch had {self._start:,} tokens"
            begin_s, cpu_s = await batch.reached(self._start), cpu_seconds(self._pid)
            end_s = await batch.reached(self._start + self._tokens)
            cpu_s = cpu_seconds(self._pid) - cpu_s
            tokens = batch.tokens_between(begin_s, end_s)
            await queue.cancel()
            await batch.cancel()
        return {RATE: tokens / (end_s - begin_s), CPU: 1e3 * max(cpu_s, TICK_S) / tokens}

    async def _until(self, client: AsyncClient, running: int, waiting: int) -> bool:
        """Wait until the instance has so many; false after PATIENCE_S."""
        deadline_s = time.perf_counter() + PATIENCE_S
        while time.perf_counter() < deadline_s:
            for status in await client.statuses():
                found: InstanceStatus = status.instance
                if (found.running, found.waiting) == (running, waiting):
                    return True
            await asyncio.sleep(POLL_S)
        return False


def measure(say: Say, *, quick: bool, queued: Sequence[int], rounds: int) -> Measured:
    """Run it."""
    sizes = sorted(queued) or (QUICK_QUEUED if quick else QUEUED)
    start, tokens = (QUICK_START, QUICK_TOKENS) if quick else (START, TOKENS)
    with tempfile.TemporaryDirectory(prefix="distkv-bench-") as scratch:
        model = make_checkpoint(Path(scratch) / "model")
        say("starting an instance")
        options = {"max_num_seqs": BATCH, "max_waiting": 2 * max(sizes)}
        with LocalCluster(
            model, 1, KV_TOKENS, threads=1, gateway=False, log_level="warning", instance_options=options
        ) as cluster:
            batch = Batch(cluster, start, tokens)
            variants = {_queued(size): partial(batch.measure, size) for size in (0, *sizes)}
            samples = alternate(variants, rounds, warmups=0 if quick else 1, report=say)
    facts = {
        "model": "random Llama, float32, hidden 64, layers 2",
        "instance": f"{BATCH} sequences in a step, {KV_TOKENS:,} tokens of KV, one thread, room for the queue",
        "measured": f"{tokens:,} tokens of each sequence, after the first {start:,}",
    }
    return Measured(samples, tuple(_goal(size, samples[RATE], batch.slow) for size in sizes), facts)


def _queued(size: int) -> str:
    return f"{size:,} queued"


def _goal(size: int, rates: Mapping[str, list[float]], slow: Mapping[int, str]) -> Goal:
    goal = f"throughput with {size:,} queued to that with none"
    if size in slow:
        return Goal(goal, f"at least {GOAL:g}", "", False, slow[size])
    return at_least(goal, paired_ratio(rates[_queued(size)], rates[_queued(0)]), GOAL)


main = benchmark(
    "queue",
    measure,
    HELP,
    [
        click.Option(
            ["--queued"],
            type=click.IntRange(min=1),
            multiple=True,
            help="Requests behind the batch; may be given again. 100, 1,000 and 5,000 if not given.",
        ),
    ],
    unit_of=UNITS.__getitem__,
    packages=("pyzmq", "uvloop"),
    rounds=(5, 1),
)
