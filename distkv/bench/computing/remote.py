"""`distkv bench remote`: decode steps with some of their KV at creditors beside one instance that has all of it.

Engines, links and serving threads as workers have them, one core each, without the processes and messages around them.
Each step computes a token behind the same keys. What both sides note of each layer says where its time goes.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Mapping
from contextlib import ExitStack
from functools import partial

from distkv.bench.baselines.checkpoints import MODELS
from distkv.bench.baselines.checkpoints import Model as Shape
from distkv.bench.harness.alternate import Samples, alternate
from distkv.bench.harness.command import Measured, Say, benchmark, unit_of_name
from distkv.bench.harness.cores import two_cores
from distkv.bench.harness.timing.processes import cpu_seconds
from distkv.bench.remote_cells.debtor import Debtor, DecodeSteps
from distkv.bench.remote_cells.goals import (
    ALONE,
    BESIDE,
    IDLE,
    ONE,
    OWN_STEPS,
    ROUND_TRIP,
    SERVING,
    SHARE,
    SHARE_BESIDE,
    THREE,
    TWO,
    goals_of,
    layer_case,
    token_case,
)
from distkv.bench.remote_cells.layers import parts_us
from distkv.bench.remote_cells.memory import MOST_BYTES, memory_reads
from distkv.bench.remote_cells.round_trip import RoundTrips
from distkv.bench.workloads.computing.creditor import BLOCK_TOKENS, OWN_BATCH, OWN_CONTEXT, Creditor, Lent
from distkv.bench.workloads.computing.random_model import random_model
from distkv.engine.device.cpu import CpuDevice
from distkv.engine.model.decoder import Model
from distkv.types import Transport

SAMPLE_S = 0.2
"""A sample is as many steps as take so long, at least two."""
TRACED_S = 0.4
WATCHED_S = 2.0
"""A sample of what a creditor does meanwhile."""
PLANS = 20
LINKS: tuple[Transport, ...] = ("shm", "tcp")
FIRST, SECOND = "creditor", "second"
HELP = """Decode steps with some of their KV at creditors beside one instance that has all of it; where the time of a
layer goes; what a busy creditor loses; how long queries and partials are on their way.

\b
Examples:
  distkv bench remote --json remote.json --plot remote.png
  distkv bench remote --quick
"""


def measure(say: Say, *, quick: bool, rounds: int) -> Measured:
    """Run it. Nothing that it started is left on return."""
    shape = MODELS["tiny" if quick else "b"]
    contexts = (256, 512) if quick else (2048, 32768)
    with ExitStack() as stack:
        own, others = stack.enter_context(two_cores())
        stack.callback(sys.setswitchinterval, sys.getswitchinterval())
        sys.setswitchinterval(0.0005)  # as a worker has it
        say("making a model and creditors")
        device = CpuDevice()
        device.backend.use_threads(1, () if own is None else (own,))
        model = random_model(shape, device)
        blocks = max(contexts) // BLOCK_TOKENS
        first = stack.enter_context(Creditor(Lent(shape, blocks // 2, others, FIRST, traced=True)))
        second = stack.enter_context(Creditor(Lent(shape, blocks // 3, others, SECOND)))
        debtor = Debtor(model, max(contexts))
        bench = _Bench(say, shape, model, debtor, first, second, rounds, WATCHED_S / 10 if quick else WATCHED_S)
        samples = bench.idle_links()
        for context in contexts:
            samples |= bench.decode(context)
        samples |= bench.busy(max(contexts))
        samples |= bench.round_trips()
        if own is not None and others is not None:
            say("memory")
            samples |= memory_reads((own, others), rounds, *([MOST_BYTES // 16] if quick else []))
    facts = {
        "model": f"random Llama {shape.name}, bfloat16, 1 thread per instance",
        "placed": f"debtor on core {own}, creditors on core {others}",
        "contenders": {
            ONE: "all of the KV in its own pool",
            TWO: "half of it at a creditor",
            THREE: "a third at each of two creditors, which share a core",
            "busy creditor": f"decodes {OWN_BATCH} sequences of {OWN_CONTEXT} tokens all the time",
        },
    }
    return Measured(samples, goals_of(samples, contexts, shape), facts)


class _Bench:
    """One run: a debtor and two creditors."""

    def __init__(
        self,
        say: Say,
        shape: Shape,
        model: Model,
        debtor: Debtor,
        first: Creditor,
        second: Creditor,
        rounds: int,
        watched_s: float,
    ) -> None:
        self._say, self._shape, self._model, self._rounds = say, shape, model, rounds
        self._debtor, self._first, self._second = debtor, first, second
        self._watched_s = watched_s

    def decode(self, context: int) -> Samples:
        """Time per token, and the layers of two instances, behind so many tokens."""
        members = self._first.member, self._second.member
        variants = {name: self._debtor.steps(context, members[:count]) for count, name in enumerate((ONE, TWO, THREE))}
        try:
            times = {name: partial(_tokens, steps, token_case(context)) for name, steps in variants.items()}
            samples = alternate(times, self._rounds, report=lambda what: self._say(f"{context:,} tokens, {what}"))
            for load in ("idle", "busy"):
                samples |= self._layers(variants[TWO], layer_case(context, load), load == "busy")
        finally:
            for steps in variants.values():
                steps.close()
        return samples

    def _layers(self, steps: DecodeSteps, case: str, is_busy: bool) -> Samples:
        self._say(case)
        self._first.load(is_busy)
        found: dict[str, list[float]] = {}
        for _ in range(self._rounds):
            count = max(2, round(TRACED_S / steps.step()))
            self._first.load(is_busy, is_traced=True)
            own = steps.traced(count)
            for part, value in parts_us(own, self._first.load(is_busy, is_traced=True).served).items():
                found.setdefault(part, []).append(value)
        self._first.load(False)
        return {case: found}

    def busy(self, context: int) -> Samples:
        """Own steps of a creditor alone, beside a debtor that computes as much and asks nobody, and with one that asks
        all the time."""
        asking = self._debtor.steps(context, (self._first.member,))
        apart = self._debtor.steps(context, ())
        rates: dict[str, list[float]] = {ALONE: [], BESIDE: [], SERVING: [], SHARE: [], SHARE_BESIDE: []}
        try:
            asking.step()
            self._first.load(True)
            for index in range(self._rounds):
                self._say(f"a busy creditor, round {index + 1} of {self._rounds}")
                alone, _ = self._own_steps(None)
                beside, _ = self._own_steps(apart)
                serving, asked = self._own_steps(asking)
                own_bytes = self._shape.step_bytes(OWN_CONTEXT, OWN_BATCH)
                fewer = asked * asking.remote_tokens * self._shape.kv_bytes_per_token / own_bytes
                rates[ALONE].append(alone)
                rates[BESIDE].append(beside)
                rates[SERVING].append(serving)
                rates[SHARE].append(max(0.0, alone - fewer))
                rates[SHARE_BESIDE].append(max(0.0, beside - fewer))
        finally:
            self._first.load(False)
            asking.close()
            apart.close()
        return {OWN_STEPS: rates}

    def _own_steps(self, asking: DecodeSteps | None) -> tuple[float, float]:
        """Of the busy creditor, and steps of who asks it, each per second."""
        self._first.load(True)
        started_s, asked = time.monotonic(), 0
        while time.monotonic() - started_s < self._watched_s:
            if asking is None:
                time.sleep(started_s + self._watched_s - time.monotonic())
            else:
                asking.step()
                asked += 1
        took_s = time.monotonic() - started_s
        return self._first.load(True).own_steps / took_s, asked / took_s

    def round_trips(self) -> Samples:
        """Queries and partials on their way, over each kind of link."""
        links = {name: RoundTrips(self._model, self._first.member, name) for name in LINKS}
        try:
            variants = {str(name): partial(_round_trips, link) for name, link in links.items()}
            return alternate(variants, self._rounds, report=lambda what: self._say(f"round trips, {what}"))
        finally:
            for link in links.values():
                link.close()

    def idle_links(self) -> Samples:
        """Processor time of a creditor that a debtor is linked to and does not ask."""
        self._say("an idle creditor")
        steps = self._debtor.steps(BLOCK_TOKENS * 4, (self._first.member,))
        try:
            steps.step()
            found = []
            for _ in range(self._rounds):
                before_s = cpu_seconds(self._first.pid)
                time.sleep(self._watched_s)
                found.append(100 * (cpu_seconds(self._first.pid) - before_s) / self._watched_s)
        finally:
            steps.close()
        return {IDLE: {"creditor": found}}


def _tokens(steps: DecodeSteps, case: str) -> Mapping[str, float]:
    once_s = steps.step()
    return {case: 1e3 * statistics.median(steps.step() for _ in range(max(2, round(SAMPLE_S / once_s))))}


def _round_trips(link: RoundTrips) -> Mapping[str, float]:
    return {ROUND_TRIP: 1e6 * statistics.median(one for _ in range(PLANS) for one in link.plan())}


main = benchmark("remote", measure, HELP, unit_of=unit_of_name, packages=("torch",), rounds=(9, 2))
