"""`distkv bench queue`: tokens per second of a running batch with none, 100, 1,000 and 5,000 requests queued behind it.

One instance, whose batch is full. Its rate with a queue stands beside that just before the queue came and just after it
was cancelled, so that neither growing contexts nor a busy machine count.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import click
import msgspec

from distkv.actors.task_scope import task_scope
from distkv.bench.harness.alternate import Samples, paired_ratio
from distkv.bench.harness.command import Measured, Say, benchmark
from distkv.bench.harness.machine import machine_facts, versions_of
from distkv.bench.harness.processes import cpu_seconds
from distkv.bench.harness.report import Goal, Report, at_least, results
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
WINDOW_S, QUICK_WINDOW_S = 2.0, 0.5
PATIENCE_S = 60.0
POLL_S = 0.05
GOAL = 0.97
QUEUE, NONE = "queued", "none"
TICK_S = 0.01
"""What the system counts processor time in."""
HELP = """Tokens per second of a full batch with requests queued behind it, beside its rate without them, just before
and just after. A random model of two layers: what is measured is everything around the model.

\b
Examples:
  distkv bench queue --json queue.json --plot queue.png
  distkv bench queue --quick
"""


class Rate(msgspec.Struct, frozen=True):
    """Of a batch: tokens per second, and milliseconds of the rManager's processor time for a token."""

    tokens_per_s: float
    cpu_ms: float


class Rates:
    """Measures one instance. slow: the queues that were not there, or not gone, in time."""

    def __init__(self, cluster: LocalCluster, window_s: float) -> None:
        (instance,) = cluster.status()["instances"]
        self._address, self._pid, self._window_s = cluster.address, int(instance["pid"]), window_s
        self.slow: dict[int, str] = {}

    async def measure(self, queued: int) -> tuple[Rate, Rate] | None:
        """Without and with the queue; None when it did not come and go in time."""
        async with AsyncClient(self._address) as client, task_scope() as tasks:
            await self._until(client, 0, 0)
            batch, queue = Streams(client, tasks), Streams(client, tasks)
            batch.start([PROMPT] * BATCH, KV_TOKENS // (2 * BATCH))
            await batch.begun()
            before = await self._rate(batch)
            queue.start([PROMPT] * queued, 1)
            if not await self._until(client, BATCH, queued):
                self.slow[queued] = f"{queued:,} requests were not queued within {PATIENCE_S:g} s"
                return None
            beside = await self._rate(batch)
            await queue.cancel()
            if not await self._until(client, BATCH, 0):
                self.slow[queued] = f"{queued:,} queued requests were not cancelled within {PATIENCE_S:g} s"
                return None
            after = await self._rate(batch)
            await batch.cancel()
        without = Rate((before.tokens_per_s + after.tokens_per_s) / 2, (before.cpu_ms + after.cpu_ms) / 2)
        return without, beside

    async def _rate(self, batch: Streams) -> Rate:
        begin_s, cpu_s = time.perf_counter(), cpu_seconds(self._pid)
        await asyncio.sleep(self._window_s)
        end_s, cpu_s = time.perf_counter(), cpu_seconds(self._pid) - cpu_s
        tokens = max(1, batch.tokens_between(begin_s, end_s))
        return Rate(tokens / (end_s - begin_s), 1e3 * max(cpu_s, TICK_S) / tokens)

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


def measure(say: Say, *, quick: bool, queued: Sequence[int], rounds: int | None) -> Measured:
    """Run it; the report and its samples."""
    sizes = sorted(queued) or (QUICK_QUEUED if quick else QUEUED)
    rounds = rounds or (1 if quick else 5)
    facts = machine_facts()
    samples: Samples = {}
    with tempfile.TemporaryDirectory(prefix="distkv-bench-") as scratch:
        model = make_checkpoint(Path(scratch) / "model")
        say("starting an instance")
        options = {"max_num_seqs": BATCH, "max_waiting": 2 * max(sizes)}
        with LocalCluster(
            model, 1, KV_TOKENS, threads=1, gateway=False, log_level="warning", instance_options=options
        ) as cluster:
            rates = Rates(cluster, QUICK_WINDOW_S if quick else WINDOW_S)
            for number in range(-1, rounds):
                for size in sizes if number % 2 else reversed(sizes):
                    say(f"{size:,} queued, " + (f"round {number + 1} of {rounds}" if number >= 0 else "warming up"))
                    found = asyncio.run(rates.measure(size))
                    if found is not None and number >= 0:
                        for case, field in ((_case(size), "tokens_per_s"), (_cpu_case(size), "cpu_ms")):
                            for variant, rate in ((QUEUE, found[1]), (NONE, found[0])):
                                samples.setdefault(case, {}).setdefault(variant, []).append(getattr(rate, field))
    machine = facts | {
        "model": "random Llama, float32, hidden 64, layers 2",
        "command": "distkv bench queue" + "".join(f" --queued {size}" for size in sizes) + f" --rounds {rounds}"
        + (" --quick" if quick else ""),
        "instance": f"{BATCH} sequences in a step, {KV_TOKENS:,} tokens of KV, one thread, room for the queue",
    }  # fmt: skip
    goals = tuple(_goal(size, samples, rates.slow) for size in sizes)
    units = {_case(size): "tokens/s" for size in sizes} | {_cpu_case(size): "ms/token" for size in sizes}
    return Report("queue", machine, versions_of(("pyzmq", "uvloop")), results(samples, units), goals), samples


def _case(size: int) -> str:
    return f"batch of {BATCH}, {size:,} queued"


def _cpu_case(size: int) -> str:
    return f"the rManager's processor, {size:,} queued"


def _goal(size: int, samples: Samples, slow: dict[int, str]) -> Goal:
    goal, found = f"throughput with {size:,} queued to that with none", samples.get(_case(size))
    if found is None or size in slow:
        return Goal(goal, f"at least {GOAL:g}", "", False, slow.get(size, "it was not measured"))
    return at_least(goal, paired_ratio(found[QUEUE], found[NONE]), GOAL)


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
        click.Option(["--rounds"], type=click.IntRange(min=1), help="How often each number is measured."),
    ],
)
