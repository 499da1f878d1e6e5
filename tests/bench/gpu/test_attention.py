"""`distkv bench attention --device cuda`: interpreted on the CPU, what it computes; on a GPU also its timing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

pytest.importorskip("triton", reason="Triton is not installed: it comes with the extra 'gpu'")

from distkv.bench.computing import attention
from distkv.bench.gpu import attention as gpu_attention
from distkv.bench.harness.gpu import gpu_of
from distkv.bench.workloads.computing.attention import Shape
from distkv.bench.workloads.computing.gpu_attention import Cells, PagedBatch
from distkv.errors import ConfigError
from distkv.kernels import Backend
from distkv.kernels.triton.attention import templates
from distkv.kernels.triton.backend import TritonBackend
from distkv.kernels.triton.tuning import measure
from distkv.kernels.triton.tuning.tuned_table import Case, Measured, TunedTable

SHAPE, CELLS = Shape(4, 2, 32), Cells(2, 48)


@pytest.fixture
def backend() -> Backend:
    return TritonBackend()


@pytest.fixture
def device() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def test_all_contenders_compute_the_same_attention(backend: Backend, device: torch.device) -> None:
    batch = PagedBatch(SHAPE, CELLS, device)
    out, _ = batch.ours(backend, 1)()
    others = batch.sdpa(1)
    assert others
    for work in others.values():
        torch.testing.assert_close(work().transpose(1, 2).flatten(0, 1).float(), out, atol=2e-2, rtol=2e-2)
    out, _ = batch.ours(backend, 48)()
    for work in batch.sdpa(48).values():
        torch.testing.assert_close(work().transpose(1, 2).flatten(0, 1).float(), out, atol=2e-2, rtol=2e-2)


def test_every_goal_is_said(backend: Backend, device: torch.device) -> None:
    report, samples = gpu_attention.measure_on(
        device, backend, lambda _: None, (SHAPE,), (CELLS,), (CELLS,), 2, 1 << 20, "distkv bench attention"
    )
    goals = [goal.goal for goal in report.goals]
    assert len(goals) == len(set(goals)) == 3 and len(samples) == 2
    assert all(0 < row.min <= row.median <= row.max for row in report.results)


def test_a_device_that_is_not_here_is_refused_before_anything_is_measured() -> None:
    for name in ("cuda:99", "cpu"):
        with pytest.raises(ConfigError, match=f"{name} is not here"):
            gpu_of(name)
    with pytest.raises(ConfigError, match="cuda:99 is not here"):
        attention.main.main(["--device", "cuda:99"], standalone_mode=False)


def test_tuning_keeps_what_it_measured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, device: torch.device) -> None:
    monkeypatch.setattr(measure, "CASES", ((1024, 1), (8192, 1)))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "a GPU")
    asked: list[str] = []

    kept: list[int] = []

    def measured(table: TunedTable, shape: templates.Shape, _: torch.device, cases: list[tuple[int, int]]) -> None:
        asked.append(shape.key)
        kept.append(len(TunedTable.load("a GPU", tmp_path).measured))
        ((keys, rows),) = cases
        config = templates.Config(tile_keys=16, num_warps=8, num_stages=2, programs_per_sm=3)
        table.put(Measured(Case(shape.key, keys, rows), config, 1.5))

    monkeypatch.setattr(measure, "tune", measured)
    said: list[str] = []
    gpu_attention.backend_for(said.append, (SHAPE,), device, tmp_path, tune=True)
    (file,) = tmp_path.iterdir()
    assert asked == ["4/2x32 P16 bfloat16 bfloat16"] * 2 and str(file) in said[-1]
    assert kept == [0, 1], "a case that was measured is kept at once"
    assert [one.case.keys for one in TunedTable.load("a GPU", tmp_path).measured] == [1024, 8192]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_quick_run(tmp_path: Path) -> None:
    file = tmp_path / "attention.json"
    attention.main.main(["--device", "cuda", "--quick", "--json", str(file)], standalone_mode=False)
    assert json.loads(file.read_text())["machine"]["gpu"] != "none"
