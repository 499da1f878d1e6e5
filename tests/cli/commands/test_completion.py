from __future__ import annotations

import importlib
import os
import shutil
import subprocess
from pathlib import Path

import click
import pytest
from click.shell_completion import CompletionItem, ShellComplete

from distkv.cli.commands.completion import PROGRAMS, SHELLS, script
from distkv.cli.exit_codes import run
from distkv.cli.main import COMMANDS, command
from distkv.client.local.launch import MODULES

BIN = Path(__file__).parents[3] / "bin"


def completions(program: click.Command, *words: str) -> list[CompletionItem]:
    """What the last word can become."""
    found = ShellComplete(program, {}, program.name or "", "_X_COMPLETE")
    return found.get_completions(list(words[:-1]), words[-1])


def values(*words: str) -> list[str]:
    return [item.value for item in completions(command, *words)]


def test_commands_and_their_flags_complete():
    assert values("") == [name.replace(" ", "-") for name in COMMANDS], "one word is completed at a time"
    assert values("ge") == ["generate"]
    assert values("--v") == ["--version"]
    assert values("generate", "--repe") == ["--repetition-penalty"]
    assert values("wire", "de") == ["decode"]
    assert values("completion", "") == list(SHELLS)
    assert all(item.help for item in completions(command, ""))


def test_values_of_choices_complete():
    assert values("up", "--dtype", "") == ["auto", "bfloat16", "float16", "float32"]
    assert values("up", "--dtype", "float") == ["float16", "float32"]
    assert values("up", "--log-level", "w") == ["warning"]


def test_paths_complete():
    for words, kind in [(("up", "--model"), "dir"), (("up", "--config"), "file"), (("generate", "--file"), "file")]:
        assert [(item.type, item.value) for item in completions(command, *words, "some")] == [(kind, "some")]


@pytest.mark.parametrize(
    ("section", "words", "expected"),
    [
        ("gmanager", ["--dead"], ["--dead-after-s"]),
        ("instance", ["--tensor-transport", ""], ["auto", "cuda_ipc", "nixl", "shm", "tcp", "ucx"]),
        ("gateway", ["--generation-config", "n"], ["none"]),
    ],
)
def test_daemons_complete_too(section, words, expected):
    daemon = importlib.import_module(MODULES[section]).command
    assert [item.value for item in completions(daemon, *words)] == expected
    assert daemon.name in PROGRAMS


@pytest.mark.parametrize("shell", SHELLS)
def test_the_script_has_all_programs(shell, capsys):
    assert run(command, ["completion", shell]) == 0
    printed = capsys.readouterr().out
    assert printed == script(shell) + "\n"
    for program in PROGRAMS:
        assert f"_{program.replace('-', '_').upper()}_COMPLETE={shell}_complete" in printed


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash here")
def test_bash_completes():
    program = """
source /dev/stdin
compopt() { echo compopt "$@"; }  # the real one only works while a user is typing
tab() { COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMPREPLY=(); "$(function_of "$1")" "$1"; echo "${COMPREPLY[@]}"; }
function_of() { complete -p "$1" | sed 's/.* -F \\([^ ]*\\).*/\\1/'; }
tab distkv to
tab distkv up --dtype float
tab distkv up --model mod
"""
    done = subprocess.run(
        ["bash", "--norc", "-c", program],
        input=script("bash"),
        env=os.environ | {"PATH": f"{BIN}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stderr == ""
    assert done.stdout.splitlines() == ["top", "float16 float32", "compopt -o dirnames", ""]
