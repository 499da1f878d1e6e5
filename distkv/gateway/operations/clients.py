"""Whose a request is: where many share a gateway, each is one client to it."""

from __future__ import annotations

import ipaddress
from functools import lru_cache

from starlette.types import Scope

_KEY = "distkv.client"


def is_of_key(scope: Scope, index: int) -> None:
    """Note that the request came with this API key."""
    scope[_KEY] = f"key {index}"


def client_of(scope: Scope) -> str:
    """The client of a request: its API key, else the network that it came from."""
    known = scope.get(_KEY)
    if known is not None:
        return str(known)
    address = scope.get("client")
    return network_of(address[0]) if address else ""


@lru_cache(4096)
def network_of(host: str) -> str:
    """An IPv4 address, or the 64 bits of an IPv6 address that are one subscriber's."""
    if ":" not in host:
        return host
    address = ipaddress.IPv6Address(host)
    return str(address.ipv4_mapped or ipaddress.IPv6Network((int(address) >> 64 << 64, 64)))
