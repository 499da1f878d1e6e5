from __future__ import annotations

import sys
import types

import click
import pytest

from distkv.bench.rooms import modules
from distkv.cli.commands import bench
from distkv.cli.exit_codes import run
from distkv.cli.main import command


def test_bench_hands_arguments_and_exit_code_on(monkeypatch, capsys):
    module = types.ModuleType("distkv.bench.fake")
    options = [click.Option(["--quick"], is_flag=True), click.Option(["--json"])]
    module.main = click.Command(
        "x", callback=lambda quick, json: 4 if quick and json == "f.json" else 0, params=options
    )
    monkeypatch.setitem(sys.modules, "distkv.bench.fake", module)
    monkeypatch.setattr(bench, "modules", lambda: {"fake": "distkv.bench.fake"})
    assert run(command, ["bench", "fake", "--quick", "--json", "f.json"]) == 4
    assert run(command, ["bench", "fake", "--wrong"]) == 2
    assert "--wrong" in capsys.readouterr().err


def test_help_lists_the_benchmarks(capsys):
    for arguments in (["bench"], ["bench", "--help"]):
        assert run(command, arguments) == 0
        assert "smoke" in capsys.readouterr().out.split("Benchmarks:")[1].replace(",", " ").split()
    assert run(command, ["bench", "atention"]) == 2
    assert "did you mean attention?" in capsys.readouterr().err


@pytest.mark.parametrize("name", modules())
def test_each_benchmark_has_help_with_examples_one_to_a_line(name, capsys):
    """Those of three ran into one line, behind a mark that is for the formatter."""
    assert run(command, ["bench", name, "--help"]) == 0
    examples = capsys.readouterr().out.partition("Examples:\n")[2].partition("\n\n")[0].splitlines()
    assert examples and all(f"distkv bench {name} " in f"{line} " for line in examples)
