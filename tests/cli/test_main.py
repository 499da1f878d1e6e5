from __future__ import annotations

import importlib
import os
import subprocess
import sys

import pytest

import distkv
from distkv.cli.exit_codes import run
from distkv.cli.main import COMMANDS, command, module_of
from distkv.client.local.launch import MODULES
from tests.client.fakes import count_up
from tests.project.test_torch_free import loaded_by


def distkv_command(*args: str) -> int:
    return run(command, args)


@pytest.fixture
def cluster(background):
    return background.start(count_up)


def test_version(capsys):
    assert distkv_command("--version") == 0
    assert capsys.readouterr().out == f"distkv {distkv.__version__}\n"
    for section, module in MODULES.items():
        assert run(importlib.import_module(module).command, ["--version"]) == 0
        assert capsys.readouterr().out == f"distkv-{section} {distkv.__version__}\n"


def test_every_command_has_a_module_and_is_listed(capsys):
    assert distkv_command() == 0
    out = capsys.readouterr().out
    for name, text in COMMANDS.items():
        assert importlib.import_module(module_of(name)).command.name == name
        assert f"  {name} " in out and text in out


PROGRAMS = [
    *(name.split() for name in COMMANDS),
    [],
    ["wire", "decode"],
    *([f"distkv-{section}"] for section in ("gmanager", "instance", "gateway")),
]


@pytest.mark.parametrize("words", PROGRAMS, ids=" ".join)
@pytest.mark.parametrize("columns", [60, 100, 200])
def test_help_has_examples_that_parse_and_fits(words, columns, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(columns))
    if words and words[0].startswith("distkv-"):
        program = importlib.import_module(MODULES[words[0].removeprefix("distkv-")]).command
        assert run(program, ["--help"]) == 0
    else:
        assert distkv_command(*words, "--help") == 0
    out = capsys.readouterr().out
    examples = out.partition("Examples:\n")[2].partition("\n\n")[0].splitlines()
    assert examples and all("distkv" in line for line in examples)
    # Examples are to be copied, so they are not wrapped.
    assert max(len(line) for line in out.splitlines() if line not in examples) <= min(columns, 100)
    assert max(map(len, examples)) <= 110


@pytest.mark.parametrize("name", [name for name in COMMANDS if " " in name])
@pytest.mark.parametrize("between", ["-", " "])
def test_a_command_of_two_words_is_called_as_it_was_written(name, between, capsys):
    written = name.replace(" ", between)
    assert distkv_command(*written.split(), "--help") == 0
    assert capsys.readouterr().out.startswith(f"Usage: distkv {written} [OPTIONS] ")
    assert distkv_command(*written.split(), "--nothing") == 2
    assert f"see 'distkv {written} --help'" in capsys.readouterr().err


def test_terminals_without_the_letters_get_something_else(cluster):
    done = subprocess.run(
        [sys.executable, "-m", "distkv.cli.main", "top", "--interval", "0.1", "--address", cluster.address],
        env=os.environ | {"PYTHONIOENCODING": "ascii"},
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0 and b"##" not in done.stdout and b"i0 ready" in done.stdout
    assert done.stdout.isascii() and b"?" not in done.stdout


def test_a_mistaken_command_is_told_the_nearest_by_the_name_that_help_has(capsys):
    assert distkv_command("sim-pap") == 2
    assert "No such command 'sim-pap' (did you mean sim paper?)" in capsys.readouterr().err


def test_the_package_itself_is_the_command():
    done = subprocess.run(
        [sys.executable, "-m", "distkv", "--version"], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout) == (0, f"distkv {distkv.__version__}\n")


LIGHT = {"status": (), "top": (), "generate": (), "up": (), "completion": ("msgspec", "zmq", "asyncio")}


@pytest.mark.parametrize("name", LIGHT)
def test_commands_load_what_they_need(name):
    heavy = ("torch", "transformers", "starlette", "uvicorn", "prometheus_client", "tokenizers", *LIGHT[name])
    assert loaded_by(f"import distkv.cli.commands.{name}", *heavy) == ""


def test_the_list_of_commands_loads_none_of_them():
    listing = "from click.testing import CliRunner\nfrom distkv.cli.main import command\n"
    asked = "assert CliRunner().invoke(command, ['--help']).exit_code == 0"
    assert (
        loaded_by(listing + asked, "msgspec", "zmq", "asyncio", "rich", "distkv.cli.commands.up", "distkv.config") == ""
    )
