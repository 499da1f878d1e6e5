from __future__ import annotations

import sys
import types

import click

from distkv.cli.commands import bench
from distkv.cli.exit_codes import run
from distkv.cli.main import command


def test_bench_hands_its_arguments_on(monkeypatch):
    seen = []
    module = types.ModuleType("distkv.bench.fake")

    def main(args):
        seen.extend(args)
        return 0

    module.main = main
    monkeypatch.setitem(sys.modules, "distkv.bench.fake", module)
    monkeypatch.setattr(bench, "modules", lambda: {"fake": "distkv.bench.fake"})
    assert run(command, ["bench", "fake", "--quick", "--json", "f.json", "--plot", "f.png"]) == 0
    assert seen == ["--quick", "--json", "f.json", "--plot", "f.png"]


def test_a_bench_may_be_a_click_command(monkeypatch, capsys):
    module = types.ModuleType("distkv.bench.fake")
    module.main = click.Command(
        "x", callback=lambda quick: 4 if quick else 0, params=[click.Option(["--quick"], is_flag=True)]
    )
    monkeypatch.setitem(sys.modules, "distkv.bench.fake", module)
    monkeypatch.setattr(bench, "modules", lambda: {"fake": "distkv.bench.fake"})
    assert run(command, ["bench", "fake", "--quick"]) == 4
    assert run(command, ["bench", "fake", "--wrong"]) == 2
    assert "--wrong" in capsys.readouterr().err


def test_help_lists_the_benchmarks(capsys):
    for arguments in (["bench"], ["bench", "--help"]):
        assert run(command, arguments) == 0
        assert "smoke" in capsys.readouterr().out.split("Benchmarks:")[1].replace(",", " ").split()
    assert run(command, ["bench", "atention"]) == 2
    assert "did you mean attention?" in capsys.readouterr().err
