"""Addresses a user may write, and the rule that nothing listens beyond this machine by accident."""

from __future__ import annotations

import ipaddress

from distkv.errors import ConfigError


def split_host_port(address: str, key: str = "address") -> tuple[str, int]:
    """("host", port) of "host:port", "tcp://host:port" or "[v6]:port"; port "*" is 0, localhost is 127.0.0.1.

    Raises ConfigError naming `key`.
    """
    rest = address.removeprefix("tcp://")
    host, colon, port_text = rest.rpartition(":")
    if not colon or not host:
        raise ConfigError(
            key, f"expected HOST:PORT, got {address!r}", "for example 127.0.0.1:7070; port 0 is automatic"
        )
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise ConfigError(key, f"an IPv6 address needs brackets, got {address!r}", f"[{host}]:{port_text}")
    if port_text == "*":
        return _plain(host), 0
    if not (port_text.isascii() and port_text.isdigit()) or int(port_text) > 65535:
        raise ConfigError(key, f"the port of {address!r} is no number from 0 to 65535")
    return _plain(host), int(port_text)


def join_host_port(host: str, port: int | str) -> str:
    """The reverse of `split_host_port`; IPv6 hosts get their brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def is_loopback(host: str) -> bool:
    """Whether only processes of this machine can reach `host`. A name or wildcard counts as reachable by others."""
    try:
        return ipaddress.ip_address(host.partition("%")[0]).is_loopback
    except ValueError:
        return False


def check_bind(host: str, insecure: bool, key: str = "address") -> None:
    """Refuse to listen beyond loopback unless the user said so. Raises ConfigError naming --insecure."""
    if not insecure and not is_loopback(host):
        raise ConfigError(
            key,
            f"{host} can be reached from other machines, and connections are not authenticated",
            "use a loopback address, or --insecure on a network where every machine is trusted",
        )


def _plain(host: str) -> str:
    return "127.0.0.1" if host == "localhost" else host
