from __future__ import annotations

import json
import os
import socketserver
import subprocess
import sys
import threading
from pathlib import Path

import click
import pytest

from distkv.cli.exit_codes import run
from distkv.cli.main import command
from distkv.client.instances import directory
from distkv.errors import ConfigError, StartupFailed
from tests.client.fakes import refuse


def distkv_command(*args: str) -> int:
    return run(command, args)


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
        (["up", "--model", "x", "--instances", "0"], "instances: expected an integer ≥ 1, got 0 from command line"),
        (["up", "--model", "x", "--start-timeout", "-1"], "start_timeout_s: expected a number > 0 and ≤ 86400"),
        (["up", "--model", "x", "--http-port", "70000"], "not in the range"),
        (["up", "--config", "nowhere.toml"], "config: cannot read nowhere.toml"),
        (["up", "--model", "nowhere"], "there is no directory nowhere"),
        (["up", "--model", "x", "--kv-tokens", "1,x"], "kv_tokens: expected whole numbers such as 4096 or 1K,2K"),
        (["up", "demo", "--model", "x"], "two models: demo and --model x; give one"),
        (["up", "--host", "0.0.0.0"], "host: 0.0.0.0 can be reached from other machines"),
        (["up", "--no-gateway", "--api-key", "k"], "--api-key: there is no gateway (leave it out, or leave out --no-"),
        (["up", "--no-gateway", "--http-port", "1"], "--http-port: there is no gateway"),
        (["serve", "--seed", "1"], "--seed: every request has its own seed (leave it out, and send the"),
        (["up", "--tensor-parallel-size", "2"], "--tensor-parallel-size: one process computes for an instance"),
        (["up", "--ssl-certfile", "x"], "ssl_keyfile: is not set"),
        (["up", "--api-key", "(not shown)"], "api_key: has no keys: --print-config masks them"),
        (["up", "--chat-templat", "x"], "Did you mean '--chat-template'?"),
        (["bench", "smoky"], "there is no benchmark 'smoky'"),
    ],
)
def test_mistakes_exit_with_2_and_no_traceback(args, told, capsys):
    assert distkv_command(*args) == 2
    err = capsys.readouterr().err
    assert told in err and "Traceback" not in err and len(err.splitlines()) <= 2


def test_a_refused_request_exits_with_1(background, capsys):
    cluster = background.start(refuse)
    assert distkv_command("generate", "x", "--address", cluster.address) == 1
    assert "9 tokens" in capsys.readouterr().err


def test_an_unreachable_cluster_exits_with_1(monkeypatch, capsys):
    monkeypatch.setattr(directory, "FIRST_CONTACT_S", 0.05)
    assert distkv_command("status", "--address", "127.0.0.1:9") == 1
    err = capsys.readouterr().err
    assert "no distkv cluster answers at tcp://127.0.0.1:9" in err and "distkv up" in err
    assert "while a gManager is away, the address of any instance works too: --address tcp://HOST:PORT" in err


class HttpHandler(socketserver.BaseRequestHandler):
    """As a gateway answers what is no HTTP, or asks for nothing that it has."""

    def handle(self) -> None:
        self.request.recv(64)
        self.request.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\nInvalid HTTP request received.")


@pytest.mark.parametrize("words", [["status"], ["generate", "x"], ["explain", "x"], ["top"]], ids=" ".join)
def test_the_address_of_http_is_said_to_be_that(words, monkeypatch, capsys):
    monkeypatch.setattr(directory, "FIRST_CONTACT_S", 0.5)
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), HttpHandler) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        try:
            assert distkv_command(*words, "--address", f"127.0.0.1:{server.server_address[1]}") == 1
        finally:
            server.shutdown()
            thread.join()
    assert "hint: HTTP answers there, as at a gateway; give the address" in capsys.readouterr().err


def test_an_address_that_nobody_listens_at_is_said_to_be_that(monkeypatch, capsys):
    monkeypatch.setattr(directory, "FIRST_CONTACT_S", 0.2)
    assert distkv_command("status", "--address", "127.0.0.1:9") == 1
    assert "hint: nothing listens there; start one with 'distkv up'" in capsys.readouterr().err


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


LOGGING = """
import json, os, sys
import click, structlog
from distkv.cli.exit_codes import run
from distkv.log.lines import configure

def callback():
    configure("x")
    structlog.get_logger().info("something")
    opened = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT)
    os.write(opened, json.dumps([opened, [os.get_inheritable(number) for number in range(3)]]).encode())
    return int(sys.argv[2])

sys.exit(run(click.Command("x", callback=callback), []))
"""


@pytest.mark.parametrize("code", [0, 2])
@pytest.mark.parametrize("streams", [">/dev/full 2>/dev/full", ">&- 2>&-", "<&- >&- 2>&-"])
def test_a_log_that_cannot_be_written_changes_no_exit_code(streams, code, tmp_path):
    shell = ["sh", "-c", f'exec "$@" {streams}', "sh", sys.executable, "-c", LOGGING, str(tmp_path / "said"), str(code)]
    done = subprocess.run(shell, capture_output=True, timeout=60, check=False)
    opened, inheritable = json.loads((tmp_path / "said").read_text())
    assert (done.returncode, done.stderr) == (code, b"")
    assert opened > 2 and all(inheritable), "nothing else has the numbers of standard streams"


def test_an_answer_that_cannot_be_written_is_one_sentence():
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            [sys.executable, "-m", "distkv.cli.main", "--help"],
            stdout=full,
            stderr=subprocess.PIPE,
            timeout=60,
            check=False,
        )
    assert done.returncode == 1 and b"No space left on device" in done.stderr
    assert b"Traceback" not in done.stderr and b"Exception ignored" not in done.stderr


def test_what_nobody_foresaw_is_one_sentence(capsys, monkeypatch):
    def callback() -> None:
        raise ZeroDivisionError("by zero")

    assert run(click.Command("x", callback=callback), []) == 1
    err = capsys.readouterr().err
    assert err.startswith("error: ZeroDivisionError: by zero") and "Traceback" not in err


def test_an_error_moves_no_cursor(capsys):
    def fail() -> None:
        raise ConfigError("key", "got \x1b[2J\nsecond line")

    assert run(click.Command("x", callback=fail), []) == 2
    assert capsys.readouterr().err == "error: key: got \\x1b[2J\nsecond line\n"


@pytest.mark.parametrize(("ended_with", "code"), [(2, 2), (1, 1), (None, 1), (-9, 1)])
def test_who_starts_processes_ends_as_the_one_whose_configuration_is_wrong(ended_with: int | None, code: int) -> None:
    @click.command("up")
    def up() -> None:
        raise StartupFailed("gateway", "it said why", exit_code=ended_with)

    assert run(up, []) == code
