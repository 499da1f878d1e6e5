"""The notification protocol itself; tests/deploy/test_notify.py has the daemons that speak it."""

from __future__ import annotations

import secrets
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from distkv.cli.daemons.service_manager import ServiceManager


@pytest.fixture(params=["path", "abstract"])
def listener(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[str, socket.socket]]:
    """A NOTIFY_SOCKET and its value."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        name = str(tmp_path / "notify") if request.param == "path" else f"@distkv-test-{secrets.token_hex(8)}"
        sock.bind(name.replace("@", "\0", 1))
        sock.settimeout(5)
        yield name, sock


def test_it_tells_assignments_line_by_line(listener):
    name, sock = listener
    ServiceManager({"NOTIFY_SOCKET": name}).notify(READY=1, MAINPID=7, STATUS="ready at\ntcp://[::1]:1")
    assert sock.recv(4096) == b"READY=1\nMAINPID=7\nSTATUS=ready at tcp://[::1]:1"


def test_it_is_taken_out_of_the_environment(listener):
    name, _sock = listener
    environ = {"NOTIFY_SOCKET": name, "PATH": "/bin"}
    ServiceManager(environ)
    assert environ == {"PATH": "/bin"}


def test_without_a_service_manager_nothing_happens():
    with capture_logs() as logs:
        ServiceManager({}).notify(READY=1)
    assert logs == []


@pytest.mark.parametrize("address", ["/nowhere/notify", "@distkv-nobody", "vsock:2:1", "/" + "x" * 200])
def test_one_that_cannot_be_told_is_logged(address):
    with capture_logs() as logs:
        ServiceManager({"NOTIFY_SOCKET": address}).notify(READY=1)
    assert [line["event"] for line in logs] == ["the service manager cannot be told"]
