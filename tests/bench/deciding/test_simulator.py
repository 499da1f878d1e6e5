"""`distkv bench simulator`: a quick run ends with a report."""

from __future__ import annotations

from pathlib import Path

from distkv.bench.deciding.simulator import KEPT, MEMORY, RUNNING, SPEED, TOKEN, WALL, main
from tests.bench.quick_run import quick_report


def test_a_quick_run(tmp_path: Path) -> None:
    report = quick_report(main, tmp_path)
    assert [(row["case"], row["variant"]) for row in report["results"]] == [
        (case, size) for case in (SPEED, WALL, TOKEN, MEMORY, KEPT, RUNNING) for size in ("1", "4")
    ]
    assert report["machine"]["batch"] == 4 and report["goals"] == []
