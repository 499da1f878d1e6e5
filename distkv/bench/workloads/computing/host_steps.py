"""What the host does for a decode step of a GPU, without the GPU: from the bytes of the Step to those of its result.

A GPU idles while its host works, unless steps overlap. Decoding, planning, tables, launches as far as they are
Python's, sampling and encoding are measured; what a launch takes in CUDA is not.
"""

from __future__ import annotations

import contextlib
import statistics
import time
from collections.abc import Mapping, Sequence
from functools import partial

import msgspec
import torch

from distkv.bench.baselines.checkpoints import MODELS
from distkv.bench.harness.alternate import Samples, alternate
from distkv.bench.harness.report import Goal
from distkv.bench.workloads.computing.absent_creditor import AbsentCreditor
from distkv.bench.workloads.computing.absent_device import AbsentDevice
from distkv.bench.workloads.computing.decode_steps import DecodeSteps
from distkv.bench.workloads.computing.random_model import random_model
from distkv.wire.codec import encode_envelope
from distkv.wire.inboxes import WORKER_COMMANDS
from distkv.wire.messages.counters import Counters
from distkv.wire.messages.envelope import Envelope
from distkv.wire.messages.from_worker import StepResult
from distkv.wire.messages.to_worker import Step

LAYERS = 32
LENT = ", half at a creditor"
CASE = "work of the host for a step, µs"
STEPS = 40
"""Of a sample."""
GOALS_US: Mapping[int, float] = {1: 150.0, 64: 400.0}
"""By batch, for contexts of 2,048 tokens."""


def host_work(cells: Sequence[tuple[int, int]], rounds: int) -> Samples:
    """Microseconds of a step, for each (batch, context), by turns: with all keys here, and with half of them at a
    creditor that shares a mailbox."""
    torch.set_num_threads(1)
    device = AbsentDevice()
    # Layers as many as a model of 8B has, but so narrow that the logits, which are computed, take next to nothing.
    model = random_model(msgspec.structs.replace(MODELS["tiny"], layers=LAYERS), device)
    count = (rounds + 1) * STEPS
    steps = {_name(*cell): DecodeSteps(model, *cell, count) for cell in cells}
    with contextlib.ExitStack() as stack:
        for cell in cells:
            creditor = stack.enter_context(contextlib.closing(AbsentCreditor(model)))
            steps[_name(*cell) + LENT] = DecodeSteps(model, *cell, count, creditor)
        return alternate({name: partial(_measure, one) for name, one in steps.items()}, rounds, warmups=1)


def goals(samples: Samples) -> tuple[Goal, ...]:
    """Those for the cells that have one."""
    medians = {name: statistics.median(found) for name, found in samples[CASE].items()}
    wanted = {_name(batch, 2048) + where: most_us for batch, most_us in GOALS_US.items() for where in ("", LENT)}
    return tuple(
        Goal(f"{CASE}, {name}", f"at most {most_us:g}", f"{medians[name]:,.0f}", medians[name] <= most_us)
        for name, most_us in wanted.items()
        if name in medians
    )


def _name(batch: int, context: int) -> str:
    return f"batch {batch} x {context:,}"


def _measure(steps: DecodeSteps) -> Mapping[str, float]:
    spent_s = 0.0
    for _ in range(STEPS):
        command = encode_envelope(Envelope(id="rm:1", sender="rm", body=steps.next_step()))
        begun_s = time.perf_counter()
        step = WORKER_COMMANDS.decode(command).body
        assert isinstance(step, Step)
        results = steps.runner.run(step)
        result = StepResult(step_id=step.step_id, results=results, compute_s=0.0, counters=Counters())
        encode_envelope(Envelope(id="w:1", sender="worker", body=result, cause="rm:1"))
        spent_s += time.perf_counter() - begun_s
    return {CASE: 1e6 * spent_s / STEPS}
