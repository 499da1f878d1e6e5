from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

CASES = {
    "prefill of 256 tokens": ({"distkv", "transformers"}, "tokens/s"),
    "decode after 256 tokens": ({"distkv", "transformers"}, "tokens/s"),
    "time to first of 1,280 tokens": ({"3 x 512 tokens", "1 x 1,536 tokens"}, "s"),
    "decode after 1,280 tokens": ({"3 x 512 tokens", "1 x 1,536 tokens"}, "tokens/s"),
}


def smoke(scratch: Path, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "distkv.cli.main", "bench", "smoke", "--quick", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        encoding="utf-8",
        env=os.environ | {"TMPDIR": str(scratch), "PYTHONIOENCODING": "utf-8"},
    )


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_a_quick_run_measures_every_case(tmp_path):
    (tmp_path / "scratch").mkdir()
    with smoke(tmp_path / "scratch", "--json", str(tmp_path / "f.json")) as process:
        out, _ = process.communicate(timeout=200)
    assert process.returncode == 0, out
    report = json.loads((tmp_path / "f.json").read_text())
    assert report["benchmark"] == "smoke"
    found = {}
    for row in report["results"]:
        assert 0 < row["min"] <= row["median"] <= row["max"]
        found.setdefault(row["case"], (set(), row["unit"]))[0].add(row["variant"])
    assert found == CASES
    assert [goal["met"] for goal in report["goals"]] == [None, True], report["goals"]
    assert "goal unresolved: prefill and decode" in out and "a quick run measures too little to compare" in out
    assert {"python", "torch", "transformers", "distkv"} <= set(report["versions"])
    assert report["machine"]["command"] == "distkv bench smoke --quick --rounds 2"
    assert all(case in out for case in CASES)
    assert not [left for left in (tmp_path / "scratch").iterdir() if left.name.startswith("distkv")]


@pytest.mark.timeout(240)
def test_an_interrupt_leaves_nothing_behind(tmp_path):
    with smoke(tmp_path) as process:
        assert process.stdout is not None
        assert "starting instances" in process.stdout.readline()
        process.send_signal(signal.SIGTERM)
        out, _ = process.communicate(timeout=60)
    assert process.returncode == 130, out
    assert "Traceback" not in out
    assert not list(tmp_path.iterdir())
