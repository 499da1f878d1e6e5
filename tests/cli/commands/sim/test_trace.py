"""`distkv sim trace`: traces from datasets of the papers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from distkv.bench.workloads.trace import read_trace
from distkv.cli.exit_codes import run
from distkv.cli.main import command
from distkv.sim.datasets.tables import DATASETS
from distkv.sim.trace import parse_trace


def test_a_dataset_becomes_a_trace_that_others_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "trace.csv"
    assert run(command, ["sim-trace", "infinite-3", "--requests", "300", "--rate", "2", "-o", str(path)]) == 0
    assert "300 requests of 2 to 200,000 tokens" in capsys.readouterr().out
    assert run(command, ["sim-trace", "infinite-3", "--requests", "300", "--rate", "2"]) == 0
    trace = read_trace(path)
    assert parse_trace(capsys.readouterr().out.splitlines(), "standard output") == trace
    assert len(trace) == 300 and 100 < trace[-1].arrival_s < 200


def test_its_figures_are_the_table_s(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(command, ["sim-trace", "infinite-0", "--json"]) == 0
    figures = json.loads(capsys.readouterr().out)
    assert (figures["requests"], figures["longest_tokens"]) == (1000, 60_000)
    assert figures["mean_tokens"] == pytest.approx(1233, rel=0.05)
    assert figures["deviation_tokens"] == pytest.approx(7785.68, rel=0.05)


def test_without_a_name_all_datasets_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(command, ["sim-trace"]) == 0
    shown = capsys.readouterr().out
    assert all(name in shown for name in DATASETS) and "30%, above 950,000" in shown


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["infinite-9"], "there is no dataset 'infinite-9'"),
        (["infinite-3", "--requests", "0"], "expected 1 to 1,000,000 requests"),
        (["infinite-3", "--rate", "0"], "--rate"),
        (["--json"], "name it"),
        (["infinite-3", "-o", "/nowhere/trace.csv"], "cannot write /nowhere/trace.csv"),
    ],
)
def test_what_cannot_be_drawn_is_said(arguments: list[str], reason: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(command, ["sim-trace", *arguments]) == 2
    assert reason in capsys.readouterr().err
