from __future__ import annotations

import socket
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from distkv.client.local import launch
from distkv.demo.random_checkpoint import make_checkpoint
from tests.checkpoints import TEXT

Start = Callable[..., subprocess.Popen[str]]


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The smallest model that can be served, with a tokenizer."""
    path = tmp_path_factory.mktemp("deploy") / "model"
    return make_checkpoint(path, layers=1, vocab=320, text_for_tokenizer=TEXT)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts daemons as a service manager does: `start(section, {"NAME": "value"}, **settings)`. Logs go to a file."""
    started: list[subprocess.Popen[str]] = []

    def begin(section: str, environ: dict[str, str] | None = None, /, **settings: Any) -> subprocess.Popen[str]:
        values = {"log_json": True} | ({"threads": 1, "kv_tokens": 256} if section == "instance" else {}) | settings
        with log_of(tmp_path, section).open("ab") as log:
            process = subprocess.Popen(
                launch.command(section, values),
                env=launch.environment() | (environ or {}),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                text=True,
            )
        started.append(process)
        return process

    yield begin
    for process in started:
        if process.poll() is None:
            process.kill()
        process.wait()


def log_of(tmp_path: Path, section: str) -> Path:
    """Where `start` lets a daemon log."""
    return tmp_path / f"{section}.log"


def listening(address: str) -> socket.socket:
    """A NOTIFY_SOCKET at a path, or at an abstract address that begins with a zero byte."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    sock.bind(address)
    sock.settimeout(60)
    return sock


def told(sock: socket.socket) -> dict[str, str]:
    """The assignments of the next notification."""
    return dict(line.split("=", 1) for line in sock.recv(4096).decode().splitlines())
