"""`distkv bench pooling`: a quick run ends with a report, in which nobody is ahead of the oracle by much."""

from __future__ import annotations

import json
from pathlib import Path

from distkv.bench.deciding.pooling import EARLY, PLAYERS, SHORT, WHOLE, main


def test_a_quick_run(tmp_path: Path) -> None:
    path = tmp_path / "pooling.json"
    assert main.main(["--quick", "--json", str(path)], standalone_mode=False) == 0
    report = json.loads(path.read_bytes())
    assert [(row["case"], row["variant"]) for row in report["results"]] == [
        (f"{case}, 2 instances, 40% documents", name) for case in (WHOLE, EARLY, SHORT) for name in PLAYERS
    ]
    rates = {row["variant"]: row["median"] for row in report["results"] if row["case"].startswith(f"{WHOLE},")}
    assert rates["off"] < 0.9 * rates["oracle"] and rates["contract"] <= 1.1 * rates["oracle"]
    stated = {goal["goal"].rpartition(": ")[2] for goal in report["goals"]}
    assert stated == {"contract to off", "greedy to off", "even to off"}
