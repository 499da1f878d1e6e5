"""What keeps an address from answering, as far as can be told from here."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Sequence

from distkv.errors import ConfigError
from distkv.wire.address import split_host_port
from distkv.wire.look_up import look_up

HTTP_ANSWERS = "HTTP answers there, as at a gateway"
HTTP_START = b"HTTP/"
WAIT_S = 1.0
_ANY_PORT = 9


def problem_at(address: str) -> str:
    """Why nothing of distkv answers at "tcp://HOST:PORT", found within about twice WAIT_S; empty if that is not known.
    Never raises."""
    try:
        host, port = split_host_port(address)
    except ConfigError:
        return ""
    found: list[str] = []
    # A look-up of a name cannot be bounded where it is done.
    look = threading.Thread(target=lambda: found.append(_problem(host, port)), name="reachability", daemon=True)
    look.start()
    look.join(2 * WAIT_S)
    return found[0] if found else "nothing answers there"


async def problems_at(addresses: Sequence[str]) -> dict[str, str]:
    """The same of several, for a line of a log."""
    problems = await asyncio.gather(*(asyncio.to_thread(problem_at, address) for address in addresses))
    return dict(zip(addresses, problems, strict=True))


def is_elsewhere(address: str) -> bool:
    """Whether "tcp://HOST:PORT" is an address of another machine, or network namespace. Nothing is sent there. False
    for a name that is not found within WAIT_S, and for what cannot be reached. Never raises."""
    try:
        host, _port = split_host_port(address)
        found = look_up(host, WAIT_S)
    except (ConfigError, OSError, ValueError):
        return False
    return not any(map(_is_own, found)) and any(map(_has_route, found))


def _is_own(host: str) -> bool:
    """Whether this machine has a numeric address, however it is written; wildcards lead to itself, too."""
    try:
        with _datagrams(host) as sock:
            sock.bind((host, 0))
    except OSError:
        return False
    return True


def _has_route(host: str) -> bool:
    """Whether this machine knows a way to a numeric address."""
    try:
        with _datagrams(host) as sock:
            sock.connect((host, _ANY_PORT))
    except OSError:
        return False
    return True


def _datagrams(host: str) -> socket.socket:
    return socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_DGRAM)


def _problem(host: str, port: int) -> str:
    try:
        with socket.create_connection((host, port), timeout=WAIT_S) as connection:
            connection.sendall(b"GET / HTTP/1.0\r\n\r\n")
            return HTTP_ANSWERS if connection.recv(len(HTTP_START)) == HTTP_START else ""
    except (socket.gaierror, UnicodeError):
        return f"the name {host} is not known here"
    except ConnectionRefusedError:
        return "nothing listens there"
    except TimeoutError:
        return "nothing answers there"
    except OSError as error:
        return error.strerror or str(error)
