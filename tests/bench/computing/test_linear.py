"""`distkv bench linear`: what is compared computes the same, over the shapes of a model."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from distkv.bench.baselines.checkpoints import MODELS
from distkv.bench.computing import linear
from distkv.bench.computing.linear import OURS, TORCH, Layers, shapes_of
from distkv.engine.device.cpu import CpuDevice
from tests.bench.quick_run import quick_report


def test_a_quick_run(tmp_path: Path) -> None:
    report = quick_report(linear.main, tmp_path, "--rows", "1,3", "--threads", "1")
    cases = [f"{outputs:,} of {inputs:,}" for outputs, inputs in shapes_of(MODELS["tiny"])]
    assert [row["case"] for row in report["results"] if row["variant"] == OURS] == [
        f"{case}, {rows}, GB/s" for case in cases for rows in ("1 row", "3 rows")
    ]
    assert len(report["goals"]) == 2 * len(cases)


def test_all_weights_of_a_model_are_among_its_shapes() -> None:
    assert shapes_of(MODELS["8b"]) == ((6144, 4096), (4096, 4096), (28672, 4096), (4096, 14336), (128256, 4096))
    assert len(shapes_of(MODELS["7b"])) == 5


def test_contenders_compute_the_same_from_weights_that_no_cache_holds() -> None:
    layers = Layers(CpuDevice(), 96, 160, 100_000)
    assert layers.num_bytes == 4 * 96 * 160 * 2
    x = layers.rows(3)
    for ours, theirs in zip(layers.contenders[OURS], layers.contenders[TORCH], strict=True):
        torch.testing.assert_close(ours(x), theirs(x), atol=2e-2, rtol=2e-2)


def test_what_is_not_here_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(Exception, match="'9b' is not one of"):
        linear.main.main(["--quick", "--models", "9b"], standalone_mode=False)
