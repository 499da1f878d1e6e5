"""A name server that answers when it may, with what a test says."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from distkv.wire import look_up
from tests.waiting import DEADLINE_S, wait_until

NAME = "slow.example"


class NameServer:
    """Answers for NAME once it `may_answer`, with `addresses`. asked: how often."""

    def __init__(self) -> None:
        self.may_answer = threading.Event()
        self.asked = 0
        self.fails = False
        self.addresses: tuple[str, ...] = ("127.0.0.1",)
        self._ask = socket.getaddrinfo

    def getaddrinfo(self, host: str, port: int | None, *args: Any, **options: Any) -> Any:
        if host != NAME or options.get("flags"):
            return self._ask(host, port, *args, **options)
        self.asked += 1
        assert self.may_answer.wait(DEADLINE_S)
        if self.fails:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return [found for address in self.addresses for found in self._ask(address, port, **options)]


@contextmanager
def name_server() -> Iterator[NameServer]:
    """In place of this system's; it answers nothing yet."""
    server = NameServer()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(look_up.socket, "getaddrinfo", server.getaddrinfo)
        yield server
        server.may_answer.set()
        wait_until(lambda: not look_up._under_way)
