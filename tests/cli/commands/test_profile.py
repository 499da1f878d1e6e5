"""`distkv profile`: what it writes, and what it refuses before anything is measured."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from distkv.bench.profiling import run as profiling
from distkv.cli.exit_codes import run
from distkv.cli.main import command
from distkv.wire.profile_file import Predicted, ProfileFile, load_profile
from tests.wire.golden.values import PROFILE

FILE = ProfileFile(
    profile=PROFILE,
    points=(
        Predicted(
            batch=4, context_tokens=4096, remote_blocks=8, creditor_batch=2, debtor=(42.0, 40.0), creditor=(50.0, 60.0)
        ),
    ),
)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """What would have been measured."""
    found: list[dict[str, Any]] = []

    def measured(settings: dict[str, Any], say: Any, **options: Any) -> ProfileFile:
        say("measuring")
        found.append(settings | options)
        return FILE

    monkeypatch.setattr(profiling, "run", measured)
    return found


def test_it_writes_a_profile_and_says_how_good_it_is(
    asked: list[dict[str, Any]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "p.json"
    arguments = ["--model", "demo", "--threads", "3", "--device", "cpu", "-o", str(path), "--quick", "--budget", "20"]
    assert run(command, ["profile", *arguments]) == 0
    assert asked == [{"model": "demo", "threads": 3, "device": "cpu", "quick": True, "budget_s": 20.0}]
    assert load_profile(path) == PROFILE
    said = capsys.readouterr()
    assert "50% of 2 predictions are within 10 % of what was measured" in said.out
    assert f"distkv up demo --profile {path}" in said.out
    assert "profile: measuring" in said.err


@pytest.mark.parametrize(("share", "is_said"), [(0.04, False), (0.06, True)])
def test_it_says_when_the_machine_was_busy_with_something_else(
    asked: list[dict[str, Any]],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    share: float,
    is_said: bool,
) -> None:
    monkeypatch.setattr(
        "distkv.bench.harness.timing.processes.OtherPrograms.cores", lambda _: share * (os.cpu_count() or 1)
    )
    path = tmp_path / "p.json"
    assert run(command, ["profile", "--model", "demo", "-o", str(path)]) == 0
    assert ("measure again while nothing else runs" in capsys.readouterr().err) == is_said
    assert load_profile(path) == PROFILE


def test_a_network_between_machines_is_as_its_user_says(asked: list[dict[str, Any]], tmp_path: Path) -> None:
    path = tmp_path / "p.json"
    given = ["--network-round-trip-us", "60", "--network-gbit-s", "8"]
    assert run(command, ["profile", "--model", "demo", "-o", str(path), *given]) == 0
    links = load_profile(path).links
    assert links["host"] == PROFILE.links["host"]
    assert links["network"].round_trip_s == pytest.approx(PROFILE.links["host"].round_trip_s + 60e-6)
    assert links["network"].bytes_per_s == links["network"].read_bytes_per_s == 1e9


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["--model", "demo", "-o", "none/p.json"], "there is no directory"),
        (["--model", "demo", "--plot", "none/p.png"], "there is no directory"),
        (["--model", "demo", "--budget", "301"], "301.0 is not in the range"),
        (["--model", "demo", "--threads", "x"], "threads: expected an integer"),
    ],
)
def test_what_it_refuses(
    asked: list[dict[str, Any]], arguments: list[str], problem: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(command, ["profile", *arguments]) == 2
    assert problem in capsys.readouterr().err
    assert asked == []


def test_a_model_is_wanted(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(command, ["profile"]) == 2
    assert "model: is not set" in capsys.readouterr().err


def test_it_is_drawn(asked: list[dict[str, Any]], tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="--plot needs the extra 'bench'")
    picture = tmp_path / "p.png"
    arguments = ["--model", "demo", "-o", str(tmp_path / "p.json"), "--plot", str(picture)]
    assert run(command, ["profile", *arguments]) == 0
    assert picture.read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_real_workers_are_profiled(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "p.json"
    arguments = ["--model", "demo", "--threads", "1", "--device", "cpu", "--quick", "--budget", "60", "-o", str(path)]
    assert run(command, ["profile", *arguments]) == 0, capsys.readouterr().err
    profile = load_profile(path)
    assert profile.model == "checkpoint" and profile.within is not None
    assert {"host", "network"} == set(profile.links)
