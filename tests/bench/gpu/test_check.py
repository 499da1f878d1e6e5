"""What `bin/gpu-check` runs and reports; the GPU itself is not needed for that."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from click.testing import CliRunner

from distkv.bench.gpu import check

SAYS = "import sys; print('one'); print('two', flush=True); "


def part(code: str, limit_s: float = 20) -> check.Part:
    return check.Part("part", (sys.executable, "-c", code, check.REPORT), limit_s)


def test_a_part_that_ends(tmp_path: Path) -> None:
    writes = "open(sys.argv[1], 'w').write('{\"goals\": []}'); sys.exit(3)"
    done = check.run(part(SAYS + writes), tmp_path)
    assert (done.exit_code, done.output, done.report) == (3, "one\ntwo", {"goals": []})
    assert str(tmp_path) not in done.command


def test_a_part_that_takes_too_long_is_ended_and_keeps_what_it_said(tmp_path: Path) -> None:
    done = check.run(part(SAYS + "import threading; threading.Event().wait()", 1.0), tmp_path)
    assert (done.exit_code, done.output, done.report) == (None, "one\ntwo", None)


def test_the_report_has_everything_in_json_and_text(tmp_path: Path) -> None:
    done = [check.Done("tests", "pytest -m gpu", 0, 1.5, "3 passed"), check.Done("step", "bench", None, 9.0, "...", {})]
    text = check.write(tmp_path, {"date": "2026-01-02", "gpu": "none"}, done)
    assert text.name == "gpu-2026-01-02.txt" and "3 passed" in text.read_text()
    assert "step: ended at its time limit after 9.0 s" in text.read_text()
    report = json.loads(text.with_suffix(".json").read_text())
    assert [one["exit_code"] for one in report["parts"]] == [0, None] and report["machine"]["gpu"] == "none"


def test_all_parts_together_stay_within_eight_minutes() -> None:
    parts = check.parts_of("cuda:1")
    assert sum(one.limit_s for one in parts) <= 480
    assert [one.name for one in parts] == ["tests", "attention", "step"]


def test_without_a_gpu_it_says_so(tmp_path: Path) -> None:
    result = CliRunner().invoke(check.main, ["--device", "cuda:99", "--out", str(tmp_path)])
    assert result.exit_code == 1 and "cuda:99 is not here" in result.output
    assert not list(tmp_path.iterdir())
