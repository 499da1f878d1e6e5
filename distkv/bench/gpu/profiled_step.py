"""Decode steps in torch's profiler: what runs on the device, how often it is launched, and how long it idles."""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import click
import msgspec
from torch.profiler import ProfilerActivity, profile

from distkv.bench.baselines.checkpoints import MODELS
from distkv.bench.workloads.computing.decode_steps import DecodeSteps
from distkv.bench.workloads.computing.random_model import random_model
from distkv.engine.device.registry import choose_device

WARMUPS, STEPS, ROWS = 5, 5, 60
MODEL, BATCHES, CONTEXT = "1b", (1, 64), 2048


class Row(msgspec.Struct, frozen=True):
    """A kernel, or an operation of the host, of one step."""

    name: str
    where: str
    calls: float
    microseconds: float


def profiled(steps: DecodeSteps, activities: Iterable[ProfilerActivity]) -> dict[str, Any]:
    """Of one step, on average: what it takes with and without the profiler, and its rows, the longest first."""
    steps.run(WARMUPS)
    plain_us = _run(steps)
    with profile(activities=list(activities)) as found:
        profiled_us = _run(steps)
    rows = []
    for one in found.key_averages():
        on_device = one.device_type.name != "CPU"
        total_us = one.self_device_time_total if on_device else one.self_cpu_time_total
        rows.append(Row(one.key, "device" if on_device else "host", one.count / STEPS, total_us / STEPS))
    rows.sort(key=lambda row: -row.microseconds)
    busy_us = sum(row.microseconds for row in rows if row.where == "device")
    return {
        "step_us": plain_us,
        "profiled_step_us": profiled_us,
        "device_busy_us": busy_us,
        "rows": [msgspec.to_builtins(row) for where in ("device", "host") for row in _longest(rows, where)],
    }


def _longest(rows: list[Row], where: str) -> list[Row]:
    return [row for row in rows if row.where == where][:ROWS]


def _run(steps: DecodeSteps) -> float:
    started_s = time.perf_counter()
    steps.run(STEPS)
    return (time.perf_counter() - started_s) / STEPS * 1e6


@click.command(help="Decode steps in torch's profiler.")
@click.option("--device", default="cuda", show_default=True, help="cpu, cuda or cuda:N.")
@click.option("--json", "file", type=click.Path(path_type=Path), required=True)
def main(device: str, file: Path) -> None:
    """See the command's help."""
    here = choose_device(device)
    made = random_model(MODELS[MODEL], here)
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if here.is_async else [])]
    found: dict[str, Any] = {}
    for batch in BATCHES:
        steps = DecodeSteps(made, batch, CONTEXT, WARMUPS + 2 * STEPS)
        case = found[f"{MODEL}, batch {batch} x {CONTEXT:,}"] = profiled(steps, activities)
        file.write_bytes(msgspec.json.encode(found))
        click.echo(f"{MODEL}, batch {batch}: {case['step_us']:.0f} us a step, device {case['device_busy_us']:.0f} us")
        for row in case["rows"][:15]:
            click.echo(f"    {row['microseconds']:9.1f} us {row['calls']:6.1f} x {row['where']} {row['name'][:90]}")


if __name__ == "__main__":
    main()
