"""`distkv bench step` from the command line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from distkv.bench.baselines.checkpoints import MODELS
from distkv.bench.computing import step
from distkv.bench.workloads.computing.decode_steps import DecodeSteps
from distkv.bench.workloads.computing.random_model import random_model
from distkv.engine.device.cpu import CpuDevice
from distkv.engine.step.runner import Begun
from distkv.errors import ConfigError
from distkv.wire.messages.from_worker import SeqResult
from distkv.wire.messages.to_worker import Step
from tests.bench.quick_run import quick_report
from tests.engine.async_device import AsyncHost, RowTorchBackend


def test_a_quick_run(tmp_path: Path) -> None:
    report = quick_report(step.main, tmp_path, "--batches", "1,3", "--contexts", "40", "--threads", "1")
    assert [row["case"] for row in report["results"]] == [
        f"tiny, batch {batch} x 40, tokens/s" for batch in (1, 1, 3, 3)
    ]
    assert set(report["machine"]["graphs"].values()) == {"none on this device"}
    assert [goal["met"] for goal in report["goals"]] == [None, None]


def test_a_quick_run_of_the_host_alone(tmp_path: Path) -> None:
    """As a user starts it: no variable tells Triton that there is no GPU."""
    pytest.importorskip("triton")
    file = tmp_path / "host.json"
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = (sys.executable, "-m", "distkv.cli.main", "bench", "step", "--host", "--quick", "--batches", "1,3")
    subprocess.run((*command, "--json", file), env=environment, check=True, timeout=100)
    report = json.loads(file.read_text())
    cells = ["batch 1 x 2,048", "batch 3 x 2,048"]
    assert [row["variant"] for row in report["results"]] == cells + [f"{cell}, half at a creditor" for cell in cells]
    assert all(0 < row["min"] <= row["median"] <= row["max"] for row in report["results"])
    goals = [goal["goal"] for goal in report["goals"]]
    assert goals == [
        f"work of the host for a step, µs, {cell}" for cell in (cells[0], f"{cells[0]}, half at a creditor")
    ]


def test_bad_settings_are_refused_before_anything_is_made() -> None:
    with pytest.raises(ConfigError, match="cuda:99 is not here"):
        step.main.main(["--device", "cuda:99"], standalone_mode=False)
    for name in ("batches", "contexts"):
        for given in ("", "1,x", "0"):
            with pytest.raises(ConfigError, match=name):
                step.main.main(["--quick", f"--{name}", given], standalone_mode=False)


@pytest.mark.parametrize("kind", [CpuDevice, AsyncHost])
def test_steps_follow_each_other_as_in_a_worker(monkeypatch: pytest.MonkeyPatch, kind: type[CpuDevice]) -> None:
    """On a device that computes by itself each begins before the one before is finished; the tokens are the same."""
    shape = msgspec.structs.replace(MODELS["tiny"], layers=2)
    one_by_one, steps = (DecodeSteps(random_model(shape, kind(RowTorchBackend())), 2, 20, 9) for _ in range(2))
    expected = [one_by_one.runner.run(one_by_one.next_step()) for _ in range(8)]
    done: list[str] = []
    found: list[object] = []
    begin, finish = steps.runner.begin, steps.runner.finish

    def begins(step: Step, after: Begun | None = None) -> Begun:
        done.append(f"begin {step.step_id}")
        return begin(step, after)

    def finishes(begun: Begun) -> tuple[SeqResult, ...]:
        done.append(f"finish {begun.step.step_id}")
        found.append(finish(begun))
        return found[-1]  # type: ignore[return-value]

    monkeypatch.setattr(steps.runner, "begin", begins)
    monkeypatch.setattr(steps.runner, "finish", finishes)
    steps.run(5)
    steps.run(3)
    assert found == expected
    overlapped = ["begin 1", "begin 2", "finish 1", "begin 3"]
    assert done[:4] == (overlapped if kind is AsyncHost else ["begin 1", "finish 1", "begin 2", "finish 2"])
    assert done[-1] == "finish 8" and len(done) == 16
