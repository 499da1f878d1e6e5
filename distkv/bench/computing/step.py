"""`distkv bench step`: decode steps of the engine alone beside the rate at which memory could feed them.

A step reads all weights but the input embedding, and every key and value. What the processes around the engine cost is
not in it: that is `distkv bench engine`.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from functools import partial
from importlib.util import find_spec
from typing import Any

import click
import torch

from distkv.bench.baselines.checkpoints import MODELS
from distkv.bench.harness.alternate import Samples, alternate, paired_ratio
from distkv.bench.harness.command import Measured, Say, benchmark, unit_of_name
from distkv.bench.harness.lists import sizes_of
from distkv.bench.harness.report import Goal, at_least
from distkv.bench.harness.timing.bandwidth import Bandwidth
from distkv.bench.harness.timing.gpu import COPY_BYTES, GpuClock, copying, gpu_facts, gpu_of
from distkv.bench.workloads.computing.decode_steps import DecodeSteps
from distkv.bench.workloads.computing.random_model import random_model
from distkv.engine.device.device import Device
from distkv.engine.device.registry import choose_device
from distkv.errors import ConfigError

OURS, LIMIT = "distkv", "memory limit"
STEPS = 10
"""Of a sample."""
GOAL = 0.8
HELP = """Decode steps of the engine alone, with random weights, beside the rate at which memory could feed them.

\b
Examples:
  distkv bench step --model b --contexts 128,2048,8192,32768
  distkv bench step --device cuda --model 8b --batches 1,8,64 --json step.json
  distkv bench step --host --batches 1,64
"""


def measure(
    say: Say,
    *,
    quick: bool,
    device: str,
    model: str | None,
    batches: str,
    contexts: str,
    threads: int,
    rounds: int,
    host: bool,
) -> Measured:
    """Run it."""
    if host:
        return _measure_host(say, _cells(batches, contexts), rounds)
    shape = MODELS[model or ("tiny" if quick else "8b" if device != "cpu" else "b")]
    cells = _cells(batches, contexts)
    if device != "cpu":
        gpu_of(device)
    here = choose_device(device)
    bandwidth = _bandwidth(here, threads)
    say(f"making {shape.name}")
    made = random_model(shape, here)
    samples: Samples = {}
    graphs: dict[str, str] = {}
    for batch, context in cells:
        case = f"{shape.name}, batch {batch} x {context:,}, tokens/s"
        say(case)
        steps = DecodeSteps(made, batch, context, (rounds + 2) * STEPS)
        contenders = {
            OURS: partial(_rate, steps, case),
            LIMIT: partial(_limit, bandwidth, shape.step_bytes(context, batch), batch, case),
        }
        samples |= alternate(contenders, rounds, warmups=2)
        graphs[case] = steps.graphs
        del steps, contenders
    facts = gpu_facts(here.place) | {
        "kernels": here.backend.name,
        "graphs": graphs,
        "threads": threads,
        "model": f"random Llama {shape.name}, bfloat16, {shape.parameters / 1e6:.1f}M parameters",
        "contenders": {
            OURS: f"StepRunner, greedy, {STEPS} steps a sample"
            + (", each begun while the one before runs" if here.is_async else ""),
            LIMIT: "weights but the input embedding, one row of that, keys and values, over the bandwidth measured "
            + ("as a copy, bytes read and written" if here.place.type == "cuda" else "as a read"),
        },
    }
    return Measured(samples, tuple(_goal(case, rates, shape.name, here) for case, rates in samples.items()), facts)


def _measure_host(say: Say, cells: list[tuple[int, int]], rounds: int) -> Measured:
    if find_spec("triton") is None:
        raise ConfigError(
            "host",
            "the host plans launches of Triton, which is not installed",
            "in distkv's checkout: pip install '.[gpu]'",
        )
    if not torch.cuda.is_available():  # read when kernels are defined: some of the few that are launched here
        os.environ["TRITON_INTERPRET"] = "1"
    from distkv.bench.workloads.computing import host_steps

    say("steps whose kernels are not there")
    samples = host_steps.host_work(cells, rounds)
    facts = {
        "model": f"random Llama of {host_steps.LAYERS} layers, so narrow that what is computed takes next to nothing",
        "kernels": "none: captured graphs are not replayed, attention is planned and not launched",
    }
    return Measured(samples, host_steps.goals(samples), facts)


def _cells(batches: str, contexts: str) -> list[tuple[int, int]]:
    return [(batch, context) for batch in sizes_of("batches", batches) for context in sizes_of("contexts", contexts)]


def _rate(steps: DecodeSteps, case: str) -> Mapping[str, float]:
    started_s = time.perf_counter()
    steps.run(STEPS)
    return {case: STEPS * steps.batch / (time.perf_counter() - started_s)}


def _limit(bandwidth: Callable[[], float], step_bytes: float, batch: int, case: str) -> Mapping[str, float]:
    return {case: batch * bandwidth() / step_bytes}


def _bandwidth(device: Device, threads: int) -> Callable[[], float]:
    """Bytes per second."""
    place = device.place
    if place.type != "cuda":
        return Bandwidth(threads).bytes_per_s
    clock, copy = GpuClock(), copying(place)
    copy()
    return lambda: 2 * COPY_BYTES * 5 / clock.seconds(copy, 5)


def _goal(case: str, rates: Mapping[str, Any], model: str, device: Device) -> Goal:
    goal, ratio = f"{case}: share of the memory limit", paired_ratio(rates[OURS], rates[LIMIT])
    if model == "tiny":
        return Goal(goal, "measured", str(ratio), None, "caches hold this model")
    if device.place.type != "cuda" and ", batch 1 x" not in case:
        return Goal(goal, "measured", str(ratio), None, "on CPUs the goal is stated for one sequence")
    return at_least(goal, ratio, GOAL)


main = benchmark(
    "step",
    measure,
    HELP,
    [
        click.Option(["--device"], default="cpu", show_default=True, help="cpu, cuda, or cuda:N."),
        click.Option(["--model"], type=click.Choice(sorted(MODELS)), help="b, on a GPU 8b, with --quick tiny."),
        click.Option(["--batches"], default="1", show_default=True, help="Sequences of a step; with commas."),
        click.Option(["--contexts"], default="2048", show_default=True, help="Tokens behind each; with commas."),
        click.Option(
            ["--threads"], type=click.IntRange(min=1), default=torch.get_num_threads(), help="Of the CPU; all CPUs."
        ),
        click.Option(["--host"], is_flag=True, help="Only what the host does for a GPU's step. Needs Triton, no GPU."),
    ],
    unit_of=unit_of_name,
    packages=("torch", "triton"),
    rounds=(7, 2),
)
