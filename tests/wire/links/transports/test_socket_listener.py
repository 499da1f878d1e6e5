"""What strangers may cost a listener."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest
from structlog.testing import capture_logs

from distkv.errors import ConfigError
from distkv.log.line_limit import BURST_LINES
from distkv.wire.links.transports import socket_listener
from distkv.wire.links.transports.socket_listener import SocketListener
from tests.wire.links.peers import DEADLINE_S, PEER, accepting, random_pool


def test_strangers_do_not_fill_the_log() -> None:
    with random_pool() as pool, contextlib.closing(SocketListener("127.0.0.1:0", PEER, pool)) as listener:
        host, port = listener.address.rsplit(":", 1)
        with capture_logs() as logs, accepting(listener, []):
            for _ in range(10 * BURST_LINES):
                with socket.create_connection((host, int(port))) as stranger:
                    stranger.sendall(b"GET / HTTP/1.1\r\n\r\n" * 20)
                    with contextlib.suppress(ConnectionError):
                        assert not stranger.recv(1)
    lines = [line for line in logs if line["event"] == "a connection that is no tensor link was dropped"]
    assert listener.malformed == 10 * BURST_LINES
    assert BURST_LINES <= len(lines) <= 2 * BURST_LINES
    assert sum(line["left_out"] for line in lines) <= listener.malformed - len(lines)


class Enough(Exception):
    """It was tried often enough."""


def test_a_want_of_descriptors_does_not_fill_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection that cannot be accepted stays in the backlog, and it is tried again at once."""
    failures = iter([OSError(errno.EMFILE, "Too many open files")] * 10 * BURST_LINES)

    def accept(_self: socket.socket) -> NoReturn:
        raise next(failures, Enough())

    with random_pool() as pool, contextlib.closing(SocketListener("127.0.0.1:0", PEER, pool)) as listener:
        host, port = listener.address.rsplit(":", 1)
        monkeypatch.setattr(listener, "_pause", SimpleNamespace(poll=lambda _ms: []))
        with socket.create_connection((host, int(port))), capture_logs() as logs, monkeypatch.context() as full:
            full.setattr(socket.socket, "accept", accept)
            with pytest.raises(Enough):
                listener.accept(DEADLINE_S)
    lines = [line for line in logs if line["event"] == "a tensor link could not be accepted"]
    assert BURST_LINES <= len(lines) <= 2 * BURST_LINES
    assert "Too many open files" in lines[0]["problem"]


@pytest.mark.parametrize("fails", ["bind", "eventfd"])
def test_one_that_cannot_listen_leaves_nothing_open(fails: str, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[socket.socket] = []

    def no_room(*_: object) -> NoReturn:
        raise OSError(errno.ENOMEM, "Cannot allocate memory")

    class Noted(socket.socket):
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)
            opened.append(self)

        def bind(self, address: Any) -> None:
            if fails == "bind" and self.family == socket.AF_UNIX:
                no_room()
            super().bind(address)

    with random_pool() as pool, monkeypatch.context() as broken:
        broken.setattr(socket, "socket", Noted)
        if fails == "eventfd":
            broken.setattr(os, "eventfd", no_room)
        with pytest.raises(ConfigError, match=r"cannot listen at .*: Cannot allocate memory"):
            SocketListener("127.0.0.1:0", PEER, pool)
    assert [one.fileno() for one in opened] == [-1, -1]


@pytest.mark.parametrize(("needs", "family"), [(True, socket.AF_INET6), (False, socket.AF_INET)])
def test_a_name_is_listened_at_by_the_addresses_that_it_has(
    needs: bool, family: socket.AddressFamily, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[tuple[tuple[str, int], socket.AddressFamily]] = []

    def note(address: tuple[str, int], *, family: socket.AddressFamily, backlog: int) -> NoReturn:
        tried.append((address, family))
        raise OSError

    monkeypatch.setattr(socket_listener, "needs_ipv6", lambda host: needs)
    monkeypatch.setattr(socket, "create_server", note)
    with random_pool() as pool, pytest.raises(ConfigError):
        SocketListener("here.test:7", PEER, pool, insecure=True)
    assert tried == [(("here.test", 7), family)]
