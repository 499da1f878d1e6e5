"""Reads by NIXL: what goes wrong with them, and what nobody must be able to do with them."""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence

import msgspec
import psutil
import pytest

from distkv.errors import LinkClosed, MalformedMessage
from distkv.wire.links import Part, PoolMemory, Registrations, TensorLink, connect, hello_to, register
from distkv.wire.messages.common import DataEndpoint
from tests.waiting import wait_until
from tests.wire.cable import ADDRESS, OWN_ADDRESS
from tests.wire.links.peers import (
    DEADLINE_S,
    OWN,
    PEER,
    SLOT_BYTES,
    accepting,
    connect_by,
    listen_on,
    open_pair,
    random_pool,
    why_not,
)

pytestmark = pytest.mark.skipif(bool(why_not("nixl")), reason=why_not("nixl") or "installed")

SLOTS, BIG_SLOT_BYTES = 32, 1 << 20
OWNER = """
import os, sys, threading, msgspec
from distkv.wire.links import PoolMemory, attach, listen, register
from distkv.wire.messages.data import Attach
from tests.wire.links.peers import PEER, serve
address, mark = sys.argv[1], int(sys.argv[2])
pool = PoolMemory(1 << 20, 32)
for slot in range(32):
    pool.view[slot << 20 : slot + 1 << 20] = bytes([mark + slot]) * (1 << 20)
registered = register(pool, "nixl")
listener = listen(address, PEER, pool, insecure=True, registered=registered)
sys.stdout.buffer.write(msgspec.json.encode(listener.endpoint) + b"\\n")
sys.stdout.flush()

def answer(link):
    header, body = link.recv(60)
    attach(link, header, body, registered)
    serve(link, pool)

while True:
    if link := listener.accept(60):
        threading.Thread(target=answer, args=(link,), daemon=True).start()
"""


class Owner:
    """Another process whose pool is read: slot n is full of bytes `mark` + n."""

    def __init__(self, process: subprocess.Popen[bytes], mark: int) -> None:
        assert process.stdout is not None
        self.process, self.mark = process, mark
        self.endpoint = msgspec.json.decode(process.stdout.readline(), type=DataEndpoint)

    def slot(self, number: int) -> bytes:
        return bytes([self.mark + number]) * BIG_SLOT_BYTES

    def stop(self) -> None:
        os.kill(self.process.pid, signal.SIGSTOP)
        os.waitid(os.P_PID, self.process.pid, os.WSTOPPED | os.WNOWAIT)

    def go_on(self) -> None:
        os.kill(self.process.pid, signal.SIGCONT)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(DEADLINE_S)


@contextlib.contextmanager
def owner(address: str = "127.0.0.1:0", mark: int = 1, through: tuple[str, ...] = ()) -> Iterator[Owner]:
    """through: a command that is to run it."""
    command = [*through, sys.executable, "-c", OWNER, address, str(mark)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        try:
            yield Owner(process, mark)
        finally:
            process.kill()


@pytest.fixture(scope="module")
def own() -> Iterator[Registrations]:
    with PoolMemory(BIG_SLOT_BYTES, SLOTS) as pool:
        registered = register(pool, "nixl")
        yield registered
        for registration in registered.values():
            registration.close()


def linked(to: Owner, own: Registrations, endpoint: DataEndpoint | None = None) -> TensorLink:
    hello = hello_to(OWN, PEER.instance_id, PEER.incarnation)
    return connect(endpoint or to.endpoint, hello, DEADLINE_S, "nixl", own)


def target(slots: int = 1) -> memoryview:
    return memoryview(bytearray(slots * BIG_SLOT_BYTES))


def test_blocks_of_another_process(own: Registrations) -> None:
    with owner() as peer, contextlib.closing(linked(peer, own)) as link:
        into = target(3)
        link.read([4, 5, 2], [into], DEADLINE_S)
        assert into == peer.slot(4) + peer.slot(5) + peer.slot(2)


def test_reads_go_straight_into_the_own_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    from distkv.wire.links.transports.nixl.agent import Agent

    with random_pool() as pool, open_pair("nixl", pool) as pair:
        expected = bytes(pool.view[3 * SLOT_BYTES : 5 * SLOT_BYTES])
        monkeypatch.setattr(Agent, "register", lambda *_: pytest.fail("it is registered"))
        pair.asking.read([3, 4], [pool.view[9 * SLOT_BYTES : 11 * SLOT_BYTES]], DEADLINE_S)
        assert pool.view[9 * SLOT_BYTES : 11 * SLOT_BYTES] == expected


@pytest.mark.parametrize("part", [None, (5, 1000)])
def test_reads_in_many_pieces(monkeypatch: pytest.MonkeyPatch, part: Part | None) -> None:
    from distkv.wire.links.transports.nixl import reading

    monkeypatch.setattr(reading, "PIECE_BYTES", 10_000)
    monkeypatch.setattr(reading, "PIECE_RUNS", 3)
    slots = [*range(20, 60), *range(63, 0, -3)]
    first, size = part or (0, SLOT_BYTES)
    with random_pool() as pool, open_pair("nixl", pool) as pair:
        into = memoryview(bytearray(len(slots) * size))
        pair.asking.read(slots, [into], DEADLINE_S, part)
        assert into == b"".join(pool.view[slot * SLOT_BYTES + first :][:size] for slot in slots)


def test_a_stopped_owner_is_read_all_the_same(own: Registrations) -> None:
    with owner() as peer, contextlib.closing(linked(peer, own)) as link:
        peer.stop()
        into = target()
        link.read([7], [into], DEADLINE_S)
        assert into == peer.slot(7)


def test_a_killed_owner_ends_reads(own: Registrations) -> None:
    with owner() as peer, contextlib.closing(linked(peer, own)) as link:
        peer.stop()
        read = link.read_blocks(range(SLOTS), [target(SLOTS)])
        peer.kill()
        with pytest.raises(LinkClosed):
            read.wait(3600.0)
        with pytest.raises(LinkClosed):
            link.read([0], [target()], DEADLINE_S)


def test_an_owner_comes_back_at_the_same_address(own: Registrations) -> None:
    with owner() as first:
        address = first.endpoint.address
        link = linked(first, own)
        link.read([0], [target()], DEADLINE_S)
        first.kill()
        with owner(address, mark=100) as second:
            assert second.endpoint.address == address
            with pytest.raises(LinkClosed):
                link.read([0], [target()], DEADLINE_S)
            link.abort()
            with contextlib.closing(linked(second, own)) as new:
                into = target()
                new.read([5], [into], DEADLINE_S)
                assert into == second.slot(5)
            # Who knows only the first one's endpoint has its key, too.
            with pytest.raises((LinkClosed, MalformedMessage), match="seal"):
                linked(second, own, first.endpoint)


SPOILS: dict[str, Callable[[bytes], bytes]] = {
    "nothing": lambda body: b"",
    "noise": lambda body: secrets.token_bytes(len(body)),
    "cut off": lambda body: body[:-1],
    "one bit": lambda body: body[:100] + bytes([body[100] ^ 1]) + body[101:],
    "sealed by a stranger": lambda body: secrets.token_bytes(32) + body[32:],
}


@pytest.mark.parametrize("how", SPOILS)
def test_spoilt_metadata_does_not_come_near_nixl(monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    from distkv.wire.links.transports.nixl.agent import Agent
    from distkv.wire.links.transports.one_sided import pool as one_sided

    sealed = one_sided.sealed_access
    monkeypatch.setattr(one_sided, "sealed_access", lambda *parts: SPOILS[how](sealed(*parts)))
    monkeypatch.setattr(Agent, "connect", lambda *_: pytest.fail("NIXL was told"))
    links: list[TensorLink] = []
    with random_pool() as pool:
        listener = listen_on("nixl", pool)
        with accepting(listener, links), pytest.raises(MalformedMessage, match="not sealed"):
            connect_by("nixl", listener.endpoint)


@pytest.mark.parametrize("field", ["address", "num_bytes", "metadata"])
def test_sealed_nonsense_is_refused(monkeypatch: pytest.MonkeyPatch, field: str) -> None:
    from distkv.wire.links.transports.one_sided import pool as one_sided

    sealed = one_sided.sealed_access
    wrong = {"address": 2**63, "num_bytes": 1, "metadata": b""}[field]

    def spoilt(access: msgspec.Struct, offer: object) -> bytes:
        return sealed(msgspec.structs.replace(access, **{field: wrong}), offer)  # type: ignore[arg-type]

    monkeypatch.setattr(one_sided, "sealed_access", spoilt)
    with random_pool() as pool:
        listener = listen_on("nixl", pool)
        with (
            accepting(listener, []),
            pytest.raises((MalformedMessage, LinkClosed), match=r"access to a pool|cannot be read"),
        ):
            connect_by("nixl", listener.endpoint)


@pytest.mark.parametrize("offer", [{}, {"version": 1}, {"version": "1.5", "seal_key": "short"}])
def test_an_offer_that_makes_no_sense_is_refused(offer: dict[str, str | int]) -> None:
    with random_pool() as pool:
        listener = listen_on("nixl", pool)
        endpoint = msgspec.structs.replace(listener.endpoint, transports={"nixl": offer})
        with accepting(listener, []), pytest.raises(MalformedMessage, match="metadata of transport nixl"):
            connect_by("nixl", endpoint)


def test_another_version_is_named() -> None:
    with random_pool() as pool:
        listener = listen_on("nixl", pool)
        offer = listener.endpoint.transports["nixl"] | {"version": "0.9"}
        endpoint = msgspec.structs.replace(listener.endpoint, transports={"nixl": offer})
        with accepting(listener, []), pytest.raises(LinkClosed, match=r"the peer has NIXL 0\.9, here is"):
            connect_by("nixl", endpoint)


def test_no_link_where_ucx_would_emulate_reads_over_tcp() -> None:
    with random_pool() as pool:
        listener = listen_on("nixl", pool)
        elsewhere = msgspec.structs.replace(listener.endpoint, host_key="elsewhere")
        with accepting(listener, []), pytest.raises(LinkClosed, match="on another host, and there is no RDMA device"):
            connect_by("nixl", elsewhere)


def test_links_leave_nothing_at_the_owner(own: Registrations) -> None:
    with owner() as peer:
        there = psutil.Process(peer.process.pid)
        linked(peer, own).close()
        before = wait_for_few_descriptors(there, 10_000)
        for _ in range(10):
            with contextlib.closing(linked(peer, own)) as link:
                link.read([1], [target()], DEADLINE_S)
        wait_for_few_descriptors(there, before)


def wait_for_few_descriptors(process: psutil.Process, most: int) -> int:
    return wait_until(lambda: process.num_fds() <= most and process.num_fds())


READER = """
import sys, msgspec, psutil
from distkv.wire.links import PoolMemory, connect, hello_to, register
from distkv.wire.messages.common import DataEndpoint
from tests.wire.links.peers import OWN, PEER
with PoolMemory(1 << 20, 32) as pool:
    registered = register(pool, "nixl")
    endpoint = msgspec.json.decode(sys.argv[1], type=DataEndpoint)
    link = connect(endpoint, hello_to(OWN, PEER.instance_id, PEER.incarnation), 20, "nixl", registered)
    link.read(range(31, -1, -1), [pool.view], 20)
    assert pool.view == b"".join(bytes([slot + 1]) * (1 << 20) for slot in range(31, -1, -1))
    held = {one.laddr.ip for one in psutil.Process().net_connections() if one.laddr}
    link.abort()
print("read by", link.transport, *sorted(held))
"""


def test_between_network_namespaces(through: Sequence[str]) -> None:
    """UCX learns routes once in a process: both ends are new ones."""
    with owner(f"{ADDRESS}:0", through=through) as peer:
        command = [sys.executable, "-c", READER, msgspec.json.encode(peer.endpoint).decode()]
        done = subprocess.run(command, capture_output=True, text=True, timeout=2 * DEADLINE_S)
        assert done.stdout == f"read by nixl {OWN_ADDRESS} 127.0.0.1\n", done.stderr


def test_it_listens_on_the_device_of_the_link_only(own: Registrations) -> None:
    with owner() as peer, contextlib.closing(linked(peer, own)):
        for process in (psutil.Process(), psutil.Process(peer.process.pid)):
            listening = [one.laddr.ip for one in process.net_connections() if one.status == psutil.CONN_LISTEN]
            assert listening and set(listening) == {"127.0.0.1"}


def test_without_the_package_an_error_names_the_extra() -> None:
    code = """
import sys
sys.modules["nixl_cu12"] = sys.modules["nixl_cu13"] = None
from distkv.errors import ConfigError
from distkv.wire.links import PoolMemory, register
with PoolMemory(4096, 2) as pool:
    assert register(pool) == {}
    try:
        register(pool, "nixl")
    except ConfigError as error:
        print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=DEADLINE_S)
    assert "nixl cannot be used" in done.stdout and "pip install 'llm-distkv[nixl]'" in done.stdout, done.stderr
