"""What `distkv up --help` says of settings that `up` sets by itself."""

from __future__ import annotations

import tomllib

from distkv.cli.commands.up import command
from distkv.cli.exit_codes import run


def test_help_has_the_defaults_that_up_uses(capsys) -> None:
    assert run(command, ["--help"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "requests are still taken. [default: 0.0]" in shown
    assert "before the first request is served. [default: (all)]" in shown
    assert "auto shares the machine's among the instances. [default: (auto)]" in shown
    assert run(command, ["--instances", "3", "--print-config"]) == 0
    printed = capsys.readouterr().out
    assert tomllib.loads(printed)["gateway"]["drain_wait_s"] == 0.0
    assert "# wait_for is not set                         # chosen by distkv up" in printed
