"""`distkv bench simulator`: a quick run ends with a report."""

from __future__ import annotations

import json
from pathlib import Path

from distkv.bench.deciding.simulator import KEPT, MEMORY, RUNNING, SPEED, TOKEN, WALL, main


def test_a_quick_run(tmp_path: Path) -> None:
    path = tmp_path / "simulator.json"
    assert main.main(["--quick", "--json", str(path)], standalone_mode=False) == 0
    report = json.loads(path.read_bytes())
    assert [(row["case"], row["variant"]) for row in report["results"]] == [
        (case, size) for case in (SPEED, WALL, TOKEN, MEMORY, KEPT, RUNNING) for size in ("1", "4")
    ]
    assert report["machine"]["batch"] == 4 and report["goals"] == []
