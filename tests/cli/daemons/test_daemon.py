from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest

PROGRAM = """
import asyncio, sys
from distkv.cli.daemons.daemon import serve
from distkv.errors import CheckpointError, ConfigError

async def actor(ready, stop):
    what = sys.argv[1]
    if what == "fatal":
        raise CheckpointError("model", "it is empty")
    if what == "bug":
        raise KeyError("x")
    if what == "config":
        raise ConfigError("port", "is taken")
    ready({"address": "tcp://127.0.0.1:1"})
    await stop.wait()
    if what == "stuck":
        await asyncio.Event().wait()
    return 0

fd = int(sys.argv[2])
sys.exit(serve(actor, drain_s=float(sys.argv[3]), ready_fd=fd, lifeline_fd=fd))
"""


class Daemon:
    def __init__(self, what: str, drain_s: float = 30.0) -> None:
        self.ours, theirs = socket.socketpair()
        self.process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, what, str(theirs.fileno()), str(drain_s)],
            pass_fds=(theirs.fileno(),),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        theirs.close()

    def ready(self) -> dict[str, object]:
        line = self.ours.recv(4096)
        return json.loads(line)

    def ended(self) -> tuple[int, str]:
        out, _ = self.process.communicate(timeout=30)
        return self.process.returncode, out

    def close(self) -> None:
        self.ours.close()
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate()


@pytest.fixture
def start() -> Iterator[type[Daemon]]:
    started: list[Daemon] = []

    def make(*args: object) -> Daemon:
        started.append(Daemon(*args))
        return started[-1]

    yield make
    for daemon in started:
        daemon.close()


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_it_says_when_it_is_ready_and_stops_in_good_order(start, signum):
    daemon = start("good")
    assert daemon.ready() == {"pid": daemon.process.pid, "address": "tcp://127.0.0.1:1"}
    daemon.process.send_signal(signum)
    code, _ = daemon.ended()
    assert code == 0


def test_one_that_is_to_outlive_its_terminal_does(start):
    """As by nohup. That a shell ignores SIGINT for what it starts behind & means nothing."""
    before = {signum: signal.signal(signum, signal.SIG_IGN) for signum in (signal.SIGHUP, signal.SIGINT)}
    try:
        daemon = start("good")
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)
    daemon.ready()
    daemon.process.send_signal(signal.SIGHUP)
    with pytest.raises(subprocess.TimeoutExpired):
        daemon.process.wait(0.3)
    daemon.process.send_signal(signal.SIGINT)
    code, out = daemon.ended()
    assert code == 0 and "SIGINT" in out and "SIGHUP" not in out


def test_a_second_signal_ends_it_at_once(start):
    daemon = start("stuck")
    daemon.ready()
    daemon.process.terminate()
    assert daemon.process.stdout is not None
    while "stopping" not in daemon.process.stdout.readline():
        pass
    while daemon.process.poll() is None:
        daemon.process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            daemon.process.wait(0.05)
    code, out = daemon.ended()
    assert code == 128 + signal.SIGTERM
    assert "second signal" in out


def test_a_signal_that_comes_twice_is_one(start):
    daemon = start("good")
    daemon.ready()
    os.kill(daemon.process.pid, signal.SIGTERM)
    os.kill(daemon.process.pid, signal.SIGINT)
    code, out = daemon.ended()
    assert code == 0
    assert "second signal" not in out


def test_a_signal_behind_its_parent_s_word_is_one_with_it(start):
    """A service manager signals each process of a service, and one of them tells the others by itself."""
    daemon = start("stuck", 0.5)
    daemon.ready()
    daemon.ours.send(b"stop\n")
    assert daemon.process.stdout is not None
    while "stopping" not in daemon.process.stdout.readline():
        pass
    daemon.process.terminate()
    code, out = daemon.ended()
    assert code == 1 and "not stopped in time" in out
    assert "second signal" not in out


def test_draining_has_a_limit(start):
    daemon = start("stuck", 0.1)
    daemon.ready()
    daemon.process.terminate()
    code, out = daemon.ended()
    assert code == 1
    assert "not stopped in time" in out


def test_it_ends_with_its_parent(start):
    daemon = start("good")
    daemon.ready()
    daemon.ours.close()
    code, out = daemon.ended()
    assert code == 1
    assert "the parent process is gone" in out


@pytest.mark.parametrize(
    ("what", "code", "told"), [("fatal", 1, "it is empty"), ("bug", 1, "KeyError"), ("config", 2, "is taken")]
)
def test_a_fatal_error_is_logged_and_is_the_exit_code(start, what, code, told):
    daemon = start(what)
    ended, out = daemon.ended()
    assert ended == code
    assert told in out


def test_descriptors_do_not_reach_grandchildren():
    read, write = os.pipe()
    os.set_inheritable(write, True)
    try:
        program = (
            "import asyncio, os, sys\n"
            "from distkv.cli.daemons.daemon import serve\n"
            "async def actor(ready, stop):\n"
            "    return 0 if not os.get_inheritable(int(sys.argv[1])) else 3\n"
            "sys.exit(serve(actor, drain_s=1, ready_fd=int(sys.argv[1])))\n"
        )
        done = subprocess.run([sys.executable, "-c", program, str(write)], pass_fds=(write,), check=False, timeout=30)
        assert done.returncode == 0
    finally:
        os.close(read)
        os.close(write)


def test_a_daemon_takes_the_descriptors_that_it_may_have() -> None:
    program = """
import resource
resource.setrlimit(resource.RLIMIT_NOFILE, (256, 1024))
from distkv.cli.daemons.daemon import raise_descriptor_limit
raise_descriptor_limit()
print(*resource.getrlimit(resource.RLIMIT_NOFILE))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["1024", "1024"]
