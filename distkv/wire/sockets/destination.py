"""Where a client's socket connects to.

One thread of ZeroMQ serves all connections of a process, and where it looks a name up, it serves none of them for as
long as a name server is silent. So names are looked up here, and ZeroMQ is given numbers.
"""

from __future__ import annotations

import asyncio
import re
from contextlib import suppress
from typing import Protocol

from distkv.errors import ConfigError
from distkv.wire.address import join_host_port
from distkv.wire.look_up import begin_look_up, is_numeric
from distkv.wire.sockets.connecting import SHORTEST_RETRY_S
from distkv.wire.sockets.options import SEND_QUEUE_MESSAGES

_NAME = re.compile(r"[\w.-]+")
"""What may be one. "*" is for who listens, and of a URL no path belongs here."""


class Connecting(Protocol):
    """A socket; at most one endpoint at a time is connected to."""

    def connect(self, endpoint: str) -> None:
        """Begin to, and begin again whenever the connection is lost, until `disconnect`."""

    def disconnect(self, endpoint: str) -> None:
        """Take what has not left yet back, and drop it."""

    def has_unread(self) -> bool:
        """Whether a message is here that `disconnect` would drop."""


class Destination:
    """A host and port for a socket to connect to; call it under the running loop, and begin with `start`. A name is
    looked up again whenever it cannot be reached, since its address may have changed; of several addresses the next one
    is tried. Those known last are tried until there are others."""

    def __init__(self, socket: Connecting, host: str, port: int, longest_retry_s: float) -> None:
        """longest_retry_s: pauses between look-ups double up to this. Raises ConfigError where `host` cannot be one."""
        self._socket = socket
        self._host, self._port = host, port
        self._longest_retry_s = longest_retry_s
        self._is_name = not is_numeric(host)
        if self._is_name and not _NAME.fullmatch(host):
            raise ConfigError("address", f"cannot connect to {host!r}: it is neither an address nor a name")
        self._kept: list[bytes] = []
        self._loop = asyncio.get_running_loop()
        self._address: str | None = None
        self._is_reached = False
        self._pause_s = SHORTEST_RETRY_S
        self._timer: asyncio.TimerHandle | None = None
        self._answer: asyncio.Future[list[str]] | None = None

    def start(self) -> None:
        """Begin to connect. Raises as the socket does."""
        if self._is_name:
            self._look_up()
        else:
            self._go_to(self._host)

    @property
    def keeps(self) -> bool:
        """Whether what is sent waits here, until a name is reached. What ZeroMQ has would be lost with an address that
        the name has no more."""
        return self._is_name and not self._is_reached

    def keep(self, frame: bytes) -> bool:
        """Keep it to be sent; False if too much is kept already."""
        if len(self._kept) == SEND_QUEUE_MESSAGES:
            return False
        self._kept.append(frame)
        return True

    def reached(self) -> list[bytes]:
        """The connection is there; returns what was kept for it."""
        self._is_reached, self._pause_s = True, SHORTEST_RETRY_S
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        kept, self._kept = self._kept, []
        return kept

    def lost(self) -> None:
        """The connection is not there any more."""
        self._is_reached = False

    def failed(self) -> None:
        """It could not be reached, and ZeroMQ will try again."""
        if self._is_name and self._timer is None and self._answer is None:
            self._timer = self._loop.call_later(self._pause_s, self._look_up)
            self._pause_s = min(2 * self._pause_s, self._longest_retry_s)

    def close(self) -> list[bytes]:
        """Look up no more; returns what is kept if there is an address that it can still be sent to."""
        if self._timer is not None:
            self._timer.cancel()
        if self._answer is not None:
            self._answer.cancel()
        kept = self.reached()
        return [] if self._address is None else kept

    def _look_up(self) -> None:
        self._timer = None
        try:
            self._answer = asyncio.wrap_future(begin_look_up(self._host))
        except OSError:
            self.failed()
        else:
            self._answer.add_done_callback(self._looked_up)

    def _looked_up(self, answer: asyncio.Future[list[str]]) -> None:
        self._answer = None
        if answer.cancelled():
            return
        found: list[str] = []
        with suppress(OSError, ValueError):
            found = sorted(answer.result(), key=_is_ipv6)
        if self._is_reached:
            return
        if not found:
            if self._address is None:
                self.failed()
        elif not self._socket.has_unread():
            self._go_to(self._next_of(found))

    def _next_of(self, found: list[str]) -> str:
        after = found.index(self._address) + 1 if self._address in found else 0
        return found[after % len(found)]

    def _go_to(self, address: str) -> None:
        if address != self._address:
            if self._address is not None:
                self._socket.disconnect(self._endpoint(self._address))
            self._socket.connect(self._endpoint(address))
            self._address = address

    def _endpoint(self, address: str) -> str:
        return f"tcp://{join_host_port(address, self._port)}"


def _is_ipv6(address: str) -> bool:
    """Those come last: where a name has both, most listen at the others only."""
    return ":" in address
