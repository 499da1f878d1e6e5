"""`distkv bench control`: a quick run ends with a report."""

from __future__ import annotations

from pathlib import Path

import pytest

from distkv.bench.deciding.control import main
from tests.bench.quick_run import quick_report


@pytest.mark.timeout(240)
def test_a_quick_run(tmp_path: Path) -> None:
    report = quick_report(main, tmp_path)
    assert {row["variant"] for row in report["results"]} == {"10 waiting", "100 waiting", "and 100 peers"}
    assert len({row["case"] for row in report["results"]}) == 6
    assert len(report["goals"]) == 10 and all(goal["met"] is not None for goal in report["goals"])
