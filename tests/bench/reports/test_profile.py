"""`distkv bench profile` from the command line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from distkv.bench.harness.report import Report
from distkv.bench.profiling.plot import panels_of
from distkv.bench.reports import profile
from distkv.wire.profile_file import Predicted, ProfileFile, load_profile
from tests.wire.golden.values import PROFILE

POINTS = (
    Predicted(batch=1, context_tokens=1025, remote_blocks=0, creditor_batch=0, debtor=(40.0, 41.0)),
    Predicted(batch=1, context_tokens=1025, remote_blocks=64, creditor_batch=0, debtor=(38.0, 37.0)),
    Predicted(
        batch=16, context_tokens=4880, remote_blocks=32, creditor_batch=4, debtor=(90.0, 91.0), creditor=(50.0, 30.0)
    ),
)


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(settings: dict[str, Any], say: Any, **options: Any) -> ProfileFile:
        assert (Path(settings["model"]) / "config.json").is_file() and settings["threads"] == 1
        return ProfileFile(profile=PROFILE, points=POINTS)

    monkeypatch.setattr(profile, "run", run)


def test_its_report_has_every_point(measured: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, kept = tmp_path / "r.json", tmp_path / "p.json"
    arguments = ["--model", "tiny", "--json", str(file), "--profile", str(kept)]
    profile.main.main(arguments, standalone_mode=False)
    report = msgspec.json.decode(file.read_bytes(), type=Report)
    assert profile.points_of(report) == POINTS
    (goal,) = report.goals
    assert goal.met is False and goal.measured.startswith("75% of 4 predictions are within 10 %")
    assert load_profile(kept) == PROFILE
    assert "debtor" in capsys.readouterr().out
    profile.main.main([*arguments, "--quick"], standalone_mode=False)
    assert json.loads(file.read_text())["goals"][0]["met"] is None


def test_a_panel_has_the_lines_of_one_load() -> None:
    panels = panels_of(POINTS)
    assert list(panels) == ["batch 1, 1,025 tokens", "batch 16, 4,880 tokens, creditor decodes 4"]
    assert panels["batch 1, 1,025 tokens"] == {"debtor": {0: (40.0, 41.0), 64: (38.0, 37.0)}}
    assert panels["batch 16, 4,880 tokens, creditor decodes 4"] == {
        "debtor": {32: (90.0, 91.0)}, "creditor": {32: (50.0, 30.0)}, "both": {32: (140.0, 121.0)}
    }  # fmt: skip
