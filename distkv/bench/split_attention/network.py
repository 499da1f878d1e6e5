"""Network namespaces joined by links of 125 MB/s each way, as of hosts with one Gbit Ethernet port each."""

from __future__ import annotations

import contextlib
import ctypes
import os
import secrets
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import msgspec

RATE_MB_S = 125
UP_BURST, DOWN_BURST = "8kb", "64kb"
_DEVICE = "eth0"
_NEW_NET = 0x40000000
_PATH = Path("/run/netns")


class Place(msgspec.Struct, frozen=True):
    """A namespace and its address in the network."""

    namespace: str
    address: str


def missing() -> str:
    """Why this machine cannot have such a network; "" if it can."""
    absent = [program for program in ("ip", "tc") if shutil.which(program) is None]
    if absent:
        return f"{' and '.join(absent)} of iproute2 is not installed"
    return "" if os.geteuid() == 0 else "it takes root"


@contextlib.contextmanager
def shaped_network(count: int) -> Iterator[tuple[Place, ...]]:
    """So many namespaces at one switch. What each sends is shaped by a token bucket (`tc` tbf); with more than two, so
    is what each is sent. They are gone afterwards."""
    name = f"distkv-{secrets.token_hex(3)}"
    places = tuple(Place(f"{name}-{index}", f"10.213.80.{index + 1}") for index in range(count))
    with contextlib.ExitStack() as stack:
        for one in (name, *(place.namespace for place in places)):
            _run("ip", f"netns add {one}")
            stack.callback(subprocess.run, ["ip", "netns", "delete", one], check=False)
        _run("ip", f"-n {name} link add switch type bridge")
        _run("ip", f"-n {name} link set switch up")
        for index, place in enumerate(places):
            port, there = f"port{index}", place.namespace
            _run("ip", f"-n {there} link add {_DEVICE} type veth peer name {port} netns {name}")
            _run("ip", f"-n {there} addr add {place.address}/24 dev {_DEVICE}")
            _run("ip", f"-n {there} link set {_DEVICE} up")
            _run("ip", f"-n {there} link set lo up")
            _run("ip", f"-n {name} link set {port} master switch")
            _run("ip", f"-n {name} link set {port} up")
            _shape(there, _DEVICE, UP_BURST)
            if count > 2:
                _shape(name, port, DOWN_BURST)
        yield places


@contextlib.contextmanager
def within(place: Place | None) -> Iterator[None]:
    """Sockets that this thread makes meanwhile are of that namespace; of its own with None. Raises OSError."""
    if place is None:
        yield
        return
    with Path("/proc/thread-self/ns/net").open("rb") as home, (_PATH / place.namespace).open("rb") as there:
        _enter(there.fileno())
        try:
            yield
        finally:
            _enter(home.fileno())


def sent_bytes(places: tuple[Place, ...]) -> int:
    """What all have sent into the network so far, headers of all layers included."""
    return sum(_sent(place) for place in places)


def _sent(place: Place) -> int:
    command = ["ip", "-n", place.namespace, "-s", "-j", "link", "show", "dev", _DEVICE]
    found = msgspec.json.decode(subprocess.run(command, check=True, capture_output=True).stdout)
    return int(found[0]["stats64"]["tx"]["bytes"])


def _shape(namespace: str, device: str, burst: str) -> None:
    _run("tc", f"-n {namespace} qdisc add dev {device} root tbf rate {8 * RATE_MB_S}mbit burst {burst} latency 100ms")


def _run(program: str, arguments: str) -> None:
    subprocess.run([program, *arguments.split()], check=True)


def _enter(descriptor: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(descriptor, _NEW_NET):
        raise OSError(ctypes.get_errno(), "the network namespace cannot be entered")
