from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import types

import click
import pytest

import distkv
from distkv.cli.commands import bench
from distkv.cli.exit_codes import run
from distkv.cli.main import COMMANDS, command
from distkv.client import directory
from distkv.client.local.launch import MODULES
from distkv.wire.messages.to_client import RequestEnded
from tests.client.fakes import count_up
from tests.test_torch_free import loaded_by


def distkv_command(*args: str) -> int:
    return run(command, args)


@pytest.fixture
def cluster(background):
    return background.start(count_up)


def test_version(capsys):
    assert distkv_command("--version") == 0
    assert capsys.readouterr().out == f"distkv {distkv.__version__}\n"


def test_every_command_has_a_module_and_is_listed(capsys):
    assert distkv_command() == 0
    out = capsys.readouterr().out
    for name, told in COMMANDS.items():
        assert importlib.import_module(f"distkv.cli.commands.{name}").command.name == name
        assert f"  {name} " in out and told in out


PROGRAMS = [
    *([name] for name in COMMANDS),
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


@pytest.mark.parametrize(
    ("args", "told"),
    [
        (["generate", "x", "--max-tokens", "4Q"], "expected a whole number such as 256 or 4K, got '4Q'"),
        (["generate", "x", "--max-tokens", "-1"], "expected a whole number such as 256 or 4K, got '-1'"),
        (["generate", "x", "--logit-bias", "5"], "expected a token id and its bias such as 42=-1.5, got '5'"),
        (["generate", "x", "--logit-bias", "5=101"], "each with a number in [-100, 100]"),
        (["generate", "x", "--min-p", "2"], "min_p: expected a number in [0, 1]"),
        (["generate", "x", "--logprobs", "3"], "shown with --json only"),
        (["generate", "x", "-n", "0"], "not in the range"),
        (["generate", "x", "--timeout", "-1"], "timeout_s: expected seconds > 0"),
        (["generate", "x", "--file", "y"], "give one of them"),
        (["generate", "--file", "nowhere"], "cannot read nowhere"),
        (["generate", "x", "--temperature", "-1"], "temperature: expected a number ≥ 0"),
        (["generate", "x", "--address", "nowhere"], "address: expected an address such as"),
        (["generat", "x"], "No such command 'generat' (did you mean generate?)"),
        (["--verison"], "--version"),
        (["top", "--interval", "0"], "not in the range"),
        (["completion"], "Choose from: bash, zsh, fish"),
        (["completion", "tcsh"], "'tcsh' is not one of"),
        (["wire", "decod"], "No such command 'decod'"),
        (["up", "--model", "x", "--instances", "0"], "not in the range"),
        (["up", "--model", "x", "--start-timeout", "-1"], "not in the range"),
        (["up", "--model", "x", "--http-port", "70000"], "not in the range"),
        (["up", "--config", "nowhere.toml"], "config: cannot read nowhere.toml"),
        (["up", "--model", "nowhere"], "there is no directory nowhere"),
        (["up", "--model", "x", "--kv-tokens", "1,x"], "kv_tokens: expected tokens"),
        (["bench", "smoky"], "there is no benchmark 'smoky'"),
    ],
)
def test_mistakes_exit_with_2_and_no_traceback(args, told, capsys):
    assert distkv_command(*args) == 2
    err = capsys.readouterr().err
    assert told in err and "Traceback" not in err and len(err.splitlines()) <= 2


def test_a_refused_request_exits_with_1(background, capsys):
    def refuse(instance, route, submit):
        return [RequestEnded(request_id=submit.request_id, kind="refused", reason="", needed_tokens=9, pool_tokens=4)]

    cluster = background.start(refuse)
    assert distkv_command("generate", "x", "--address", cluster.address) == 1
    assert "9 tokens" in capsys.readouterr().err


def test_an_unreachable_cluster_exits_with_1(monkeypatch, capsys):
    monkeypatch.setattr(directory, "FIRST_CONTACT_S", 0.05)
    assert distkv_command("status", "--address", "127.0.0.1:9") == 1
    err = capsys.readouterr().err
    assert "no distkv cluster answers at tcp://127.0.0.1:9" in err and "distkv up" in err


def test_status_json_and_table(cluster, capsys):
    assert distkv_command("status", "--json", "--address", cluster.address) == 0
    assert [one["instance_id"] for one in json.loads(capsys.readouterr().out)["instances"]] == ["i0"]
    assert distkv_command("status", "--address", cluster.address) == 0
    out = capsys.readouterr().out
    assert "borrowed" in out and "i0[0..32)" in out


def test_bench_hands_its_arguments_on(monkeypatch):
    seen = []
    module = types.ModuleType("distkv.bench.fake")

    def main(args):
        seen.extend(args)
        return 0

    module.main = main
    monkeypatch.setitem(sys.modules, "distkv.bench.fake", module)
    monkeypatch.setattr(bench, "names", lambda: ["fake"])
    assert distkv_command("bench", "fake", "--quick", "--json", "f.json", "--plot", "f.png") == 0
    assert seen == ["--quick", "--json", "f.json", "--plot", "f.png"]


def test_a_bench_may_be_a_click_command(monkeypatch, capsys):
    module = types.ModuleType("distkv.bench.fake")
    module.main = click.Command(
        "x", callback=lambda quick: 4 if quick else 0, params=[click.Option(["--quick"], is_flag=True)]
    )
    monkeypatch.setitem(sys.modules, "distkv.bench.fake", module)
    monkeypatch.setattr(bench, "names", lambda: ["fake"])
    assert distkv_command("bench", "fake", "--quick") == 4
    assert distkv_command("bench", "fake", "--wrong") == 2
    assert "--wrong" in capsys.readouterr().err


def test_files_that_fail_are_one_sentence(capsys, tmp_path):
    def callback() -> None:
        (tmp_path / "none" / "x").touch()

    assert run(click.Command("x", callback=callback), []) == 1
    assert capsys.readouterr().err == f"error: {tmp_path / 'none' / 'x'}: No such file or directory\n"


@pytest.mark.parametrize("words", [["--help"], ["completion", "bash"], ["generate", "--help"]])
def test_a_reader_that_left_is_no_traceback(words):
    reading, writing = os.pipe()
    os.close(reading)
    try:
        done = subprocess.run(
            [sys.executable, "-m", "distkv.cli.main", *words],
            stdout=writing,
            stderr=subprocess.PIPE,
            timeout=60,
            check=False,
        )
    finally:
        os.close(writing)
    assert (done.returncode, done.stderr) == (1, b"")


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


def test_what_nobody_foresaw_is_one_sentence(capsys, monkeypatch):
    def callback() -> None:
        raise ZeroDivisionError("by zero")

    assert run(click.Command("x", callback=callback), []) == 1
    err = capsys.readouterr().err
    assert err.startswith("error: ZeroDivisionError: by zero") and "Traceback" not in err
