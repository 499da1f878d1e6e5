"""Addresses to listen at and to connect to: host and port, apart and together."""

from __future__ import annotations

import errno
import socket

from distkv.errors import ConfigError

PORT_HINT = "port 0 takes a free one"


def port_hint(error: int | None) -> str:
    """What to do where a port cannot be had, by the errno; empty where another one would be no better."""
    return PORT_HINT if error in (errno.EADDRINUSE, errno.EACCES) else ""


def split_host_port(address: str) -> tuple[str, int]:
    """("host", port) of "host:port", "tcp://host:port" or "[v6]:port"; port "*" is 0, localhost is 127.0.0.1.

    Raises ConfigError.
    """
    rest = address.removeprefix("tcp://")
    host, colon, port_text = rest.rpartition(":")
    if not colon or not host:
        raise ConfigError("address", f"expected HOST:PORT, got {address!r}", f"for example 127.0.0.1:7070; {PORT_HINT}")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise ConfigError("address", f"an IPv6 address needs brackets, got {address!r}", f"[{host}]:{port_text}")
    if port_text == "*":
        return _plain(host), 0
    if not (port_text.isascii() and port_text.isdigit()) or int(port_text) > 65535:
        raise ConfigError("address", f"the port of {address!r} is no number from 0 to 65535")
    return _plain(host), int(port_text)


def join_host_port(host: str, port: int | str) -> str:
    """The reverse of `split_host_port`; IPv6 hosts get their brackets, unless they have them."""
    host = host.strip("[]")
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def needs_ipv6(host: str) -> bool:
    """Whether only IPv6 can listen there: at an address of that kind, or a name that has no other; not of a name that
    is not known. To look it up may take seconds."""
    if ":" in host:
        return True
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return False
    return all(family == socket.AF_INET6 for family, *_ in found)


def _plain(host: str) -> str:
    return "127.0.0.1" if host == "localhost" else host
