"""distkv bench gmanager: it completes, and says what it could not show."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from distkv.bench.gmanager import CPU, DEATH_BYTES, QUICK, main
from distkv.bench.harness.report import Report

pytestmark = pytest.mark.timeout(120)


def test_quick_shows_growth_and_leaves_the_goals_open(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    written, drawn = tmp_path / "gmanager.json", tmp_path / "gmanager.png"
    assert main.main(["--quick", "--json", str(written), "--plot", str(drawn)], standalone_mode=False) == 0
    report = msgspec.json.decode(written.read_bytes(), type=Report)
    rows = {(row.case, row.variant): row.median for row in report.results}
    few, many = (f"{count:,}" for count in QUICK.instances)
    assert {variant for _, variant in rows} == {few, many}
    assert rows[CPU, few] > 0 and rows["Locate, p99", many] > 0
    assert rows["heartbeats", many] == pytest.approx(100, rel=0.5)
    copies = rows[DEATH_BYTES, many] / rows[DEATH_BYTES, few]
    assert copies == pytest.approx(99 / 9, rel=0.1), "one small message to each of the others"
    assert len(report.goals) == 4 and all(goal.met is None for goal in report.goals)
    assert drawn.stat().st_size > 10_000
