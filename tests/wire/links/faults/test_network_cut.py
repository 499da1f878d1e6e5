"""Two network namespaces, and a cable between them that is cut under reads."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator

import pytest

from distkv.errors import LinkClosed, LinkTimeout
from distkv.wire.links import PoolMemory, Registrations
from tests.wire.links.faults.owner import DEADLINE_S, SLOT_BYTES, Owner, running

# Of this process alone: others may run the same tests beside it.
NAMESPACE, HERE, THERE = f"distkv-{os.getpid()}", f"dkh{os.getpid()}", f"dkt{os.getpid()}"
SUBNET = f"10.99.{os.getpid() % 200 + 20}"
SHORT_S = 0.5

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("ip") is None, reason="needs root, and ip of iproute2"
)


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


@pytest.fixture
def transport() -> str:
    """What reaches a peer over any cable; others have tests of their own."""
    return "tcp"


@pytest.fixture
def owner(transport: str, registered: Registrations) -> Iterator[Owner]:
    """At the other end of the cable."""
    with contextlib.ExitStack() as stack:
        try:
            ip("netns", "add", NAMESPACE)
        except subprocess.CalledProcessError as error:
            pytest.skip(f"no network namespace can be made: {error.stderr!r}")
        stack.callback(ip, "netns", "del", NAMESPACE)
        ip("link", "add", HERE, "type", "veth", "peer", "name", THERE)
        stack.callback(ip, "link", "del", HERE)
        ip("link", "set", THERE, "netns", NAMESPACE)
        ip("addr", "add", f"{SUBNET}.1/24", "dev", HERE)
        ip("link", "set", HERE, "up")
        ip("-n", NAMESPACE, "addr", "add", f"{SUBNET}.2/24", "dev", THERE)
        ip("-n", NAMESPACE, "link", "set", THERE, "up")
        within = ("ip", "netns", "exec", NAMESPACE)
        yield stack.enter_context(running(transport, f"{SUBNET}.2:7791", within=within))


def test_cut_under_reads(owner: Owner, own: PoolMemory, registered: Registrations, took: Callable[[], None]) -> None:
    link = owner.connect(registered)
    link.read([5], [own.view[:SLOT_BYTES]], DEADLINE_S)
    reads = [link.read_blocks([slot], [own.view[slot * SLOT_BYTES : (slot + 1) * SLOT_BYTES]]) for slot in range(9)]
    for read in reads:
        read.wait(DEADLINE_S)
    took()
    ip("-n", NAMESPACE, "link", "set", THERE, "down")
    late = link.read_blocks(range(4000), [own.view[: 4000 * SLOT_BYTES]])
    with pytest.raises((LinkTimeout, LinkClosed)):
        late.wait(SHORT_S)
    with pytest.raises(LinkClosed):
        link.read([5], [own.view[:SLOT_BYTES]], DEADLINE_S)
    link.abort()


def test_nobody_answers_a_syn(owner: Owner, registered: Registrations, took: Callable[[], None]) -> None:
    took()
    ip("-n", NAMESPACE, "link", "set", THERE, "down")
    with pytest.raises(LinkTimeout):
        owner.connect(registered, timeout_s=SHORT_S)
