from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from distkv.cli.commands.up import command
from distkv.cli.exit_codes import run
from distkv.cli.local.wanted import Wanted
from distkv.cli.signals import BURST_S
from distkv.errors import ConfigError
from tests.cli.terminal import on_terminal

PROGRAM = """
import sys
from distkv.cli.exit_codes import run
from distkv.cli.commands.up import command
from distkv.client.local import launch
launch.MODULES = {section: f"tests.client.local.fake_{section}" for section in launch.MODULES}
sys.exit(run(command, sys.argv[1:]))
"""


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[[str], subprocess.Popen[str]]]:
    """Starts `distkv up` with a fake model, fake daemons and two instances."""
    started: list[subprocess.Popen[str]] = []

    def up(model: str, *more: str, gateway: bool = False) -> subprocess.Popen[str]:
        (tmp_path / model).mkdir()
        (tmp_path / model / "config.json").write_text(json.dumps({}))
        arguments = ["--model", str(tmp_path / model), "--instances", "2", "--kv-tokens", "160,320", "--port", "0"]
        http = ["--http-port", "0"] if gateway else ["--no-gateway"]
        process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, *arguments, *http, "--log-dir", str(tmp_path / "logs"), *more],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        started.append(process)
        return process

    yield up
    for process in started:
        process.kill()
        process.communicate()


def lines_until(process: subprocess.Popen[str], word: str) -> list[str]:
    assert process.stdout is not None
    lines = []
    for line in process.stdout:
        lines.append(line)
        if word in line:
            return lines
    raise AssertionError(f"it ended without {word!r}: {lines}")


def are_gone(processes: list[psutil.Process]) -> bool:
    """They are children of `up`, which ends after them."""
    return not any(one.is_running() for one in processes)


def pids(lines: list[str]) -> list[int]:
    return [int(line.split("pid ")[1].split(",")[0]) for line in lines if line.startswith("i") and ": pid " in line]


def test_a_signal_to_it_and_its_group_is_one(start):
    up = start("x")
    lines_until(up, "try: distkv generate")
    os.kill(up.pid, signal.SIGTERM)
    lines_until(up, "stopping")
    os.kill(up.pid, signal.SIGTERM)
    out, _ = up.communicate(timeout=30)
    assert up.returncode == 0, out


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_up_says_where_it_is_and_ends_in_good_order(start, signum):
    up = start("x")
    lines = lines_until(up, "try: distkv generate")
    assert any(line.startswith("ready at tcp://127.0.0.1:") for line in lines)
    told = [line.partition(" is ready after ")[0] for line in lines if " is ready after " in line]
    assert told[0] == "gManager" and sorted(told[1:]) == ["instance i0", "instance i1"]
    instances = [psutil.Process(pid) for pid in pids(lines)]
    assert len(instances) == 2
    os.kill(up.pid, signum)
    out, _ = up.communicate(timeout=30)
    assert up.returncode == 0, out
    assert are_gone(instances)


def test_a_stop_says_what_it_waits_for_and_a_second_one_ends_it_at_once(start):
    up = start("stays")
    instances = [psutil.Process(pid) for pid in pids(lines_until(up, "try: distkv generate"))]
    os.kill(up.pid, signal.SIGINT)
    said = lines_until(up, "waiting for")
    assert said[-2:] == [
        "stopping; Ctrl-C again ends everything at once\n",
        "waiting for 1 request on i0, 1 on i1; Ctrl-C again ends them\n",
    ]
    assert all(one.is_running() for one in instances)
    with pytest.raises(subprocess.TimeoutExpired):
        up.wait(BURST_S)  # a signal so soon would be one with the first
    os.kill(up.pid, signal.SIGINT)
    out, _ = up.communicate(timeout=30)
    assert up.returncode == 130, out
    assert are_gone(instances)


def test_a_dead_instance_is_reported_and_the_last_one_ends_it(start):
    up = start("x")
    first, second = pids(lines_until(up, "try: distkv generate"))
    os.kill(first, signal.SIGKILL)
    assert "killed by SIGKILL; the others go on" in lines_until(up, "instance i0 died")[-1]
    assert psutil.pid_exists(second)
    os.kill(second, signal.SIGKILL)
    told = lines_until(up, "no instance is left")[-1]
    up.communicate(timeout=30)
    assert up.returncode == 1
    logs = Path(told.strip().rpartition("the logs stay in ")[2])
    assert (logs / "i0.log").is_file() and (logs / "i1.log").is_file()
    shutil.rmtree(logs)


def test_what_dies_is_started_again_if_asked_and_the_log_says_so(start, tmp_path):
    up = start("x", "--restart", "1")
    first, second = pids(lines_until(up, "try: distkv generate"))
    os.kill(first, signal.SIGKILL)
    assert "it is started again in 0.5 s (number 1), the others go on" in lines_until(up, "instance i0 died")[-1]
    back = lines_until(up, "instance i0 is ready again")[-1]
    again = int(back.split("pid ")[1].split(",")[0])
    assert again not in (first, second) and psutil.pid_exists(again)
    os.kill(again, signal.SIGKILL)
    assert "started again 1 time in 10 minutes and stays down" in lines_until(up, "instance i0 died")[-1]
    up.terminate()
    out, _ = up.communicate(timeout=30)
    assert up.returncode == 0, out
    log = [json.loads(line) for line in (tmp_path / "logs" / "up.log").read_text().splitlines()]
    assert [one["event"] for one in log] == ["a process died", "a process is ready again", "a process died"]
    assert [one["process"] for one in log] == ["up"] * 3 and log[0]["name"] == "instance i0"


def test_the_gateway_is_shown_with_something_to_try_and_keeps_its_key_to_itself(start, tmp_path):
    config = tmp_path / "up.toml"
    config.write_text("max_concurrent_requests = 3\nport = 1\n[gateway]\nserved_model_name = ['from-file']\n")
    more = ("--config", str(config), "--served-model-name", "tiny", "--api-key", "sesame")
    lines = lines_until(up := start("x", *more, gateway=True), "try: distkv generate")
    url = next(line for line in lines if line.startswith("gateway: pid")).split(", ")[1]
    curl = next(line for line in lines if line.startswith("try: curl"))
    assert f"{url}/v1/completions" in curl and '"model": "tiny"' in curl and "Bearer KEY" in curl
    assert "sesame" not in "".join(lines)
    gateway = psutil.Process(int(next(line for line in lines if "gateway: pid" in line).split("pid ")[1].split(",")[0]))
    assert "--max-concurrent-requests=3" in gateway.cmdline() and "sesame" not in " ".join(gateway.cmdline())
    gateway.kill()
    assert "the others go on" in lines_until(up, "gateway died")[-1]
    up.terminate()
    out, _ = up.communicate(timeout=30)
    assert up.returncode == 0, out


def test_what_print_config_prints_can_be_started(start, tmp_path, capsys):
    """Lists that are empty in it were given to the gateway as empty texts."""
    file = tmp_path / "cluster.toml"
    assert run(command, ["--print-config"]) == 0
    file.write_text(capsys.readouterr().out)
    assert "served_model_name = []" in file.read_text()
    lines_until(up := start("x", "--config", str(file), gateway=True), "try: distkv generate")
    up.terminate()
    out, _ = up.communicate(timeout=30)
    assert up.returncode == 0, out


def test_the_demo_model_comes_with_a_question_that_it_can_answer(start):
    lines = lines_until(up := start("x", "--model", "demo", gateway=True), "try: distkv generate")
    tries = [line for line in lines if line.startswith("try: ")]
    question = "is 48213. Question: What is the access code of the north station? Answer:"
    assert len(tries) == 2 and all(question in line for line in tries)
    assert '"temperature": 0' in tries[0] and tries[1].endswith("--temperature 0\n")
    up.terminate()
    up.communicate(timeout=30)


@pytest.mark.parametrize("flag", ["--port", "--http-port"])
def test_a_port_in_use_is_one_sentence_that_names_the_flag(flag, tmp_path, capsys):
    (tmp_path / "config.json").touch()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        ports = {"--port": "0", "--http-port": "0"} | {flag: port}
        assert run(command, ["--model", str(tmp_path), *(word for pair in ports.items() for word in pair)]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith(f"error: {flag}: cannot listen on 127.0.0.1:{port}: Address already in use")
    assert f"give another with {flag}" in captured.err and len(captured.err.splitlines()) == 1


@pytest.mark.parametrize(
    ("host", "http_host", "collides"),
    [
        ("127.0.0.1", "127.0.0.1", True),
        ("127.0.0.1", "0.0.0.0", True),
        ("127.0.0.1", "127.0.0.2", False),
    ],
)
def test_two_programs_at_one_port_are_seen_before_they_start(host, http_host, collides):
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    given = {"up": {}, "gmanager": {"host": host, "port": port}, "gateway": {"host": http_host, "port": port}}
    wanted = Wanted(given, {}, {"port": "--port", "http_port": "--http-port"})
    told = pytest.raises(ConfigError, match=r"--http-port: cannot listen on .*Address already in use")
    with told if collides else contextlib.nullcontext():
        wanted.check_ports()


@pytest.mark.parametrize("host", ["192.0.2.1", "name.invalid"])
def test_a_host_that_is_not_here_is_not_called_a_port_in_use(host, capsys):
    assert run(command, ["--host", host, "--insecure", "--port", "0", "--http-port", "0"]) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and captured.err.startswith(f"error: host: {host} is no address of this machine: ")


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--cpu-affinity", "4000-4005"], "cpu_affinity: this process may not use cores 4000-4005 (it may use "),
        (["--profile", "a100-llama2-7b"], "profile: cannot read a100-llama2-7b: No such file or directory (distkv pro"),
        (["--chat-template", "no.jinja"], "chat_template: no.jinja cannot be read: No such file or directory"),
        (["--ssl-certfile", "no.pem", "--ssl-keyfile", "k"], "ssl_certfile: no.pem cannot be read: No such file"),
    ],
)
def test_what_is_not_here_is_all_named_before_anything_is_said(arguments, told, capsys):
    assert run(command, ["--instances", "2", "--port", "0", "--http-port", "0", *arguments]) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and captured.err.startswith(f"error: {told}") and captured.err.count("\n") == 1


def test_a_start_that_fails_is_one_sentence(start):
    up = start("dies")
    out, _ = up.communicate(timeout=30)
    assert up.returncode == 1
    starting, *ready, error = out.splitlines()
    assert starting.startswith("starting a gManager and 2 instances")
    assert all(" is ready after " in line for line in ready)
    assert error.startswith("error: instance i") and error.endswith("it has no weights")


def test_up_shows_the_cluster_on_a_terminal(tmp_path):
    (tmp_path / "config.json").touch()
    arguments = ["--model", str(tmp_path), "--kv-tokens", "160", "--port", "0", "--no-gateway"]
    with on_terminal([sys.executable, "-c", PROGRAM, *arguments]) as terminal:
        terminal.wait_for("ready at tcp://127.0.0.1:")
        terminal.wait_for("tokens/s: prompt")
        assert "\x1b" in terminal.written
        terminal.wait_for("borrowed")
        os.kill(terminal.process.pid, signal.SIGINT)
        terminal.wait_for("stopping; Ctrl-C again ends everything at once")
        assert terminal.process.wait(timeout=30) == 0


def test_up_can_be_interrupted_while_it_starts(start):
    up = start("hangs")
    lines_until(up, "starting")
    while len(children := psutil.Process(up.pid).children()) < 3:
        assert up.poll() is None
    up.send_signal(signal.SIGINT)
    out, _ = up.communicate(timeout=30)
    assert up.returncode == 130, out
    assert "Traceback" not in out
    # One that was just being started when the signal came ends by its lifeline.
    _, left = psutil.wait_procs(children, timeout=15)
    assert not left
