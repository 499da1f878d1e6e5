"""`distkv bench control`: a quick run ends with a report."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from distkv.bench.deciding.control import main


@pytest.mark.timeout(240)
def test_a_quick_run(tmp_path: Path) -> None:
    path = tmp_path / "control.json"
    assert main.main(["--quick", "--json", str(path)], standalone_mode=False) == 0
    report = json.loads(path.read_bytes())
    assert {row["variant"] for row in report["results"]} == {"10 waiting", "100 waiting", "and 100 peers"}
    assert len({row["case"] for row in report["results"]}) == 6
    assert len(report["goals"]) == 10 and all(goal["met"] is not None for goal in report["goals"])
