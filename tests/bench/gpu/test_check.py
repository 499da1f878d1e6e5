"""What `bin/gpu-check` runs and reports; the GPU itself is not needed for that."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import tomllib
from contextlib import suppress
from pathlib import Path
from typing import Any

import click
import psutil
import pytest
from click.testing import CliRunner

from distkv.bench.gpu import check, running
from distkv.bench.gpu.record import Record
from distkv.bench.gpu.running import Done
from distkv.bench.gpu.stages import REPORT, TABLES, Stage, environment, stages_of
from tests.waiting import wait_until

ROOT = Path(__file__).parents[3]
SAYS = "import sys, threading; print('one'); print('two', flush=True); "
STAYS = "threading.Event().wait()"
WRITES = "open(sys.argv[1], 'w').write('{\"goals\": []}'); "
LIMIT_S = 60.0
DEADLINE_S = 60.0


def stage(code: str, **more: Any) -> Stage:
    return Stage("stage", (sys.executable, "-c", code, REPORT), LIMIT_S, **more)


def test_a_stage_that_ends(tmp_path: Path) -> None:
    done = running.run(stage(SAYS + WRITES + "sys.exit(3)"), tmp_path, tmp_path, LIMIT_S, lambda _: None)
    assert (done.exit_code, done.output, done.report, done.why) == (3, "one\ntwo", {"goals": []}, "")
    assert str(tmp_path) not in done.command


def test_a_stage_that_takes_too_long_is_ended_and_keeps_what_it_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It does not hear the interrupt, and has a process of its own."""
    monkeypatch.setattr(running, "END_WITHIN_S", 0.1)
    deaf = "import signal, subprocess; signal.signal(signal.SIGINT, signal.SIG_IGN); "
    child = "subprocess.Popen([sys.executable, '-c', 'import threading; threading.Event().wait()']); "
    told = threading.Event()
    monkeypatch.setattr(running, "POLL_S", 0.02)
    done = running.run(stage(SAYS + WRITES + deaf + child + STAYS), tmp_path, tmp_path, 3, lambda _: told.set())
    assert told.is_set()
    assert (done.exit_code, done.report) == (None, {"goals": []}) and "limit of 3 s" in done.why


def test_what_cannot_be_killed_keeps_no_other_stage_waiting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a process that hangs in a GPU's driver."""
    started: list[subprocess.Popen[bytes]] = []

    def start(*arguments: Any, **options: Any) -> subprocess.Popen[bytes]:
        started.append(popen(*arguments, **options))
        return started[0]

    popen = subprocess.Popen
    monkeypatch.setattr(running, "END_WITHIN_S", 0.1)
    monkeypatch.setattr(running.subprocess, "Popen", start)
    monkeypatch.setattr(running.os, "killpg", lambda _pid, _signum: None)
    deaf = "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN); "
    done = running.run(stage(deaf + SAYS + STAYS), tmp_path, tmp_path, 3, lambda _: None)
    assert (done.exit_code, done.output) == (None, "one\ntwo") and "limit of 3 s" in done.why
    started[0].kill()
    started[0].wait(DEADLINE_S)


def test_what_needs_a_program_that_is_not_there_is_left_out(tmp_path: Path) -> None:
    done = running.run(stage(STAYS, needs=("no-such-program",)), tmp_path, tmp_path, LIMIT_S, lambda _: None)
    assert done.why == "left out: there is no no-such-program"


def test_lines_that_are_being_written_do_not_hide_the_others(tmp_path: Path) -> None:
    for written, found in [("{}", [{}]), ('{"case": 1}\\n{"ca', [{"case": 1}])]:
        lines = stage(f"import sys; open(sys.argv[1], 'w').write('{written}')", has_lines=True)
        assert running.run(lines, tmp_path, tmp_path, LIMIT_S, lambda _: None).report == found


def test_the_report_has_everything_in_json_and_text(tmp_path: Path) -> None:
    record = Record(tmp_path, {"date": "2026-01-02", "gpu": "none"})
    record.put(Done("tests", "pytest", why="it is running", report=[{"test": "a", "outcome": "passed"}]))
    record.put(Done("step", "bench", None, 9.0, "ended at its limit of 9 s", "..."))
    record.put(Done("tests", "pytest", 1, 1.5, "", "2 passed", [{"outcome": "passed"}, {"outcome": "failed"}]))
    text = record.text.read_text()
    assert record.text.name == "gpu-2026-01-02.txt" and "2 passed" in text
    assert "step: ended at its limit of 9 s after 9.0 s" in text
    assert "tests: exit code 1 after 1.5 s, 1 failed, 1 passed" in text
    report = json.loads(record.text.with_suffix(".json").read_text())
    assert [(one["name"], one["exit_code"]) for one in report["stages"]] == [("tests", 1), ("step", None)]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["gpu-2026-01-02.json", "gpu-2026-01-02.txt"]


def test_a_later_run_of_a_day_leaves_the_report_of_an_earlier_one(tmp_path: Path) -> None:
    for number in range(3):
        Record(tmp_path, {"date": "2026-01-02"}).put(Done(f"stage {number}"))
    for number, name in enumerate(["gpu-2026-01-02", "gpu-2026-01-02-2", "gpu-2026-01-02-3"]):
        found = json.loads((tmp_path / f"{name}.json").read_text())["stages"]
        assert [one["name"] for one in found] == [f"stage {number}"]
        assert f"stage {number}" in (tmp_path / f"{name}.txt").read_text()


@pytest.mark.parametrize("does", ["exit 1", "exec sleep 60"])
def test_a_service_that_does_not_start_costs_its_own_stage_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, does: str
) -> None:
    control = tmp_path / "nvidia-cuda-mps-control"
    control.write_text(f"#!/bin/sh\nexec 2>&-\n{does}\n")
    control.chmod(0o700)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(running, "END_WITHIN_S", 0.3)
    stages = stage("", needs=(control.name,), with_mps=True), Stage("next", (sys.executable, "-c", ""), LIMIT_S)
    record = Record(tmp_path, {"date": "2026-01-02"})
    assert not check.run_all(stages, check.Budget([], stages), record, tmp_path)
    first, second = json.loads(record.text.with_suffix(".json").read_text())["stages"]
    assert first["why"].startswith("left out: nvidia-cuda-mps-control did not start: ")
    assert second["exit_code"] == 0 and "CUDA_MPS_PIPE_DIRECTORY" not in os.environ


def test_stages_come_in_the_order_of_what_they_teach(tmp_path: Path) -> None:
    stages = stages_of("cuda:1")
    names = [one.name for one in stages]
    assert names[:3] == ["smoke", "tests", "sanitizer"] and names[-1] == "profiled step"
    assert len(set(names)) == len(names) and sum(one.limit_s for one in stages) <= 1500
    (tuning,) = (one for one in stages if one.name == "tuning")
    assert TABLES in tuning.command
    (tests,) = (one for one in stages if one.name == "tests")
    named = [word for word in tests.command if word.startswith("tests/")]
    assert named and all((ROOT / word).is_dir() for word in named)
    first = environment(tests, tmp_path)["DISTKV_FIRST"].split(",")
    assert all((ROOT / one).exists() and one.startswith(tuple(named)) for one in first)


def test_wheels_are_collected_of_all_that_torch_and_pytest_do_not_bring() -> None:
    """A machine with nothing else runs every stage with them."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    tested = "hypothesis|psutil|pytest-|transformers"
    used = [one for one in project["optional-dependencies"]["test"] if re.match(tested, one)] + project["dependencies"]
    names = {re.split("[>=<;\\[ ]", one)[0].lower().replace("-", "_") for one in used} - {"torch", "numpy"}
    lists = re.findall(r"^(?:wanted|often)=\((.*?)\)", (ROOT / "bin" / "gpu-check").read_text(), re.M | re.S)
    listed = {name.lower().replace("-", "_") for one in lists for name in one.split()}
    assert names - listed == set()
    pinned = {
        line.partition("==")[0].lower().replace("-", "_") for line in (ROOT / "constraints.txt").read_text().split()
    }
    assert listed - pinned == set()


def test_a_budget_is_for_all_and_for_each() -> None:
    stages = stages_of("cuda")
    budget = check.Budget(["100", "smoke=7"], stages)
    assert budget.limit_s(stages[0]) == 7
    assert 0 < budget.limit_s(stages[1]) <= 100
    for wrong in ("0", "x", "smoke=", "nothing=3"):
        with pytest.raises(click.BadParameter):
            check.Budget([wrong], stages)


def test_what_the_budget_has_no_time_for_is_left_out_and_said(tmp_path: Path) -> None:
    stages = (stage(WRITES.join(["import sys; ", ""])), Stage("late", ("false",), LIMIT_S))
    budget = check.Budget([], stages)
    ends_s = [LIMIT_S, 1.0]
    budget.limit_s = lambda _: ends_s.pop(0)  # type: ignore[method-assign]
    record = Record(tmp_path, {"date": "2026-01-02"})
    assert not check.run_all(stages, budget, record, tmp_path)
    found = json.loads(record.text.with_suffix(".json").read_text())["stages"]
    assert [(one["exit_code"], one["why"]) for one in found] == [(0, ""), (None, "left out: no time is left")]


@pytest.mark.parametrize("given", [["--stages", "smoke,nothing"], ["--budget", "nothing=3"]])
def test_a_stage_that_is_not_there_is_refused(tmp_path: Path, given: list[str]) -> None:
    result = CliRunner().invoke(check.main, ["--device", "cpu", "--out", str(tmp_path), *given])
    assert result.exit_code == 2 and "there is no stage 'nothing'; there are smoke" in result.output


def test_without_a_gpu_it_says_so(tmp_path: Path) -> None:
    result = CliRunner().invoke(check.main, ["--device", "cuda:99", "--out", str(tmp_path)])
    assert result.exit_code == 1 and "cuda:99 is not here" in result.output
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGKILL])
def test_ended_in_the_middle_it_leaves_what_it_found(tmp_path: Path, signum: int) -> None:
    """The smoke cases that were done by then are in the report."""
    command = [ROOT / "bin" / "gpu-check", "--device", "cpu", "--out", tmp_path, "--stages", "smoke"]
    environment = {**os.environ, "PYTHON": sys.executable}
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL, env=environment)
    try:
        found = wait_until(lambda: list(tmp_path.glob("gpu-*.json")), DEADLINE_S)
    finally:
        started = psutil.Process(process.pid).children(recursive=True)
        process.send_signal(signum)
        process.wait(DEADLINE_S)
        for one in started:
            with suppress(psutil.NoSuchProcess):
                one.kill()
    (smoke,) = json.loads(found[0].read_text())["stages"]
    assert smoke["name"] == "smoke" and smoke["report"][0]["case"] == "matrix product"


def test_without_torch_it_says_what_it_needs(tmp_path: Path) -> None:
    """A Python that has only its own library, as that of most systems."""
    bare = tmp_path / "python"
    bare.write_text(f'#!/bin/sh\nexec "{sys.executable}" -I -S "$@"\n')
    bare.chmod(0o755)
    told = subprocess.run(
        [ROOT / "bin" / "gpu-check", "--help"],
        env={"PATH": os.environ["PATH"], "PYTHON": str(bare)},
        capture_output=True,
        text=True,
        check=False,
        timeout=DEADLINE_S,
    )
    assert told.returncode == 2
    assert "--collect-wheels DIR" in told.stdout and "lacks torch, click, msgspec" in told.stderr
