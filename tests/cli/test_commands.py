from __future__ import annotations

import io
import json
import sys
import types

import click
import pytest

import distkv
from distkv.cli import bench
from distkv.cli.failures import run
from distkv.cli.main import COMMANDS, command
from distkv.client import directory
from distkv.wire.messages.to_client import RequestEnded
from distkv.wire.messages.to_rmanager import Submit
from tests.client.fakes import count_up


def distkv_command(*args: str) -> int:
    return run(command, args)


@pytest.fixture
def cluster(elsewhere):
    return elsewhere.start(count_up)


def submitted(cluster) -> Submit:
    return cluster.instances[0].of(Submit)[-1]


def test_version_and_help(capsys):
    assert distkv_command("--version") == 0
    assert capsys.readouterr().out == f"distkv {distkv.__version__}\n"
    assert distkv_command() == 0
    assert "Examples:" in capsys.readouterr().out
    for name in COMMANDS:
        assert distkv_command(name, "--help") == 0
        assert "Examples:" in capsys.readouterr().out


def test_generate_streams_text(cluster, capsys):
    assert distkv_command("generate", "hello", "--max-tokens", "3", "--address", cluster.address) == 0
    assert capsys.readouterr().out == "0 1 2 \n"
    assert submitted(cluster).prompt == "hello"


def test_generate_json(cluster, capsys, monkeypatch):
    monkeypatch.setenv("DISTKV_ADDRESS", cluster.address)
    assert distkv_command("generate", "hello", "--max-tokens", "2", "--json", "--request-id", "r") == 0
    output = json.loads(capsys.readouterr().out)
    assert (output["text"], output["token_ids"], output["finish_reason"]) == ("0 1 ", [0, 1], "length")
    assert (output["request_id"], output["prompt_tokens"]) == ("r", 5)


def test_generate_hands_every_sampling_flag_on(cluster):
    flags = "--temperature 0.5 --top-p 0.9 --top-k 7 --seed 3 --stop a --stop b --stop-token-id 2 --ignore-eos"
    assert distkv_command("generate", "x", *flags.split(), "--timeout", "9", "--address", cluster.address) == 0
    params = submitted(cluster).params
    assert (params.temperature, params.top_p, params.top_k, params.seed) == (0.5, 0.9, 7, 3)
    assert (params.stop, params.stop_token_ids, params.ignore_eos) == (("a", "b"), (2,), True)
    assert submitted(cluster).timeout_s == 9


def test_generate_takes_a_file_or_standard_input(cluster, tmp_path, monkeypatch):
    path = tmp_path / "prompt.txt"
    path.write_text("från en fil", encoding="utf-8")
    assert distkv_command("generate", "--file", str(path), "--address", cluster.address) == 0
    assert submitted(cluster).prompt == "från en fil"
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"from a pipe")))
    assert distkv_command("generate", "--address", cluster.address) == 0
    assert submitted(cluster).prompt == "from a pipe"


@pytest.mark.parametrize(
    ("args", "told"),
    [
        (["generate", "x", "--file", "y"], "give one of them"),
        (["generate", "--file", "nowhere"], "cannot read nowhere"),
        (["generate", "x", "--temperature", "-1"], "temperature: expected a number ≥ 0"),
        (["generate", "x", "--address", "nowhere"], "address: expected an address such as"),
        (["generat", "x"], "No such command 'generat'"),
        (["up"], "model: is not set"),
        (["up", "--model", "nowhere"], "there is no directory nowhere"),
        (["up", "--model", "x", "--kv-tokens", "1,x"], "kv_tokens: expected tokens"),
        (["bench", "smoky"], "there is no benchmark 'smoky'"),
    ],
)
def test_mistakes_exit_with_2_and_no_traceback(args, told, capsys):
    assert distkv_command(*args) == 2
    err = capsys.readouterr().err
    assert told in err and "Traceback" not in err and len(err.splitlines()) <= 2


def test_a_refused_request_exits_with_1(elsewhere, capsys):
    def refuse(instance, route, submit):
        return [RequestEnded(request_id=submit.request_id, kind="refused", reason="", needed_tokens=9, pool_tokens=4)]

    cluster = elsewhere.start(refuse)
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


def test_what_nobody_foresaw_is_one_sentence(capsys, monkeypatch):
    def callback() -> None:
        raise ZeroDivisionError("by zero")

    assert run(click.Command("x", callback=callback), []) == 1
    err = capsys.readouterr().err
    assert err.startswith("error: ZeroDivisionError: by zero") and "Traceback" not in err
