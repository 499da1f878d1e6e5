"""`distkv bench step` from the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from distkv.bench.computing import step
from distkv.errors import ConfigError


def test_a_quick_run(tmp_path: Path) -> None:
    file = tmp_path / "step.json"
    threads = torch.get_num_threads()
    try:
        step.main.main(
            ["--quick", "--batches", "1,3", "--contexts", "40", "--threads", "1", "--json", str(file)],
            standalone_mode=False,
        )
    finally:
        torch.set_num_threads(threads)
    report = json.loads(file.read_text())
    assert [row["case"] for row in report["results"]] == [
        f"tiny, batch {batch} x 40, tokens/s" for batch in (1, 1, 3, 3)
    ]
    assert all(0 < row["min"] <= row["median"] <= row["max"] for row in report["results"])
    assert set(report["machine"]["graphs"].values()) == {"none on this device"}
    assert [goal["met"] for goal in report["goals"]] == [None, None]


def test_a_quick_run_of_the_host_alone(tmp_path: Path) -> None:
    pytest.importorskip("triton")
    file = tmp_path / "host.json"
    threads = torch.get_num_threads()
    try:
        step.main.main(["--host", "--quick", "--batches", "1,3", "--json", str(file)], standalone_mode=False)
    finally:
        torch.set_num_threads(threads)
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
