"""Links between processes: what is left when the other process is killed or stopped."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import msgspec
import pytest

from distkv.errors import LinkClosed, LinkTimeout
from distkv.wire.links import TensorLink
from distkv.wire.messages.common import DataEndpoint
from distkv.wire.messages.data import Attend
from tests.wire.links.conftest import pool_mappings
from tests.wire.links.peers import DEADLINE_S, SLOT_BYTES, connect_by

SERVER = """
import sys, threading, msgspec
from tests.wire.links.peers import listen_on, serve
from distkv.wire.links import PoolMemory
pool = PoolMemory(4096, 8)
for slot in range(8):
    pool.view[slot * 4096 : (slot + 1) * 4096] = bytes([slot + 1]) * 4096
listener = listen_on("tcp", pool)
sys.stdout.buffer.write(msgspec.json.encode(listener.endpoint) + b"\\n")
sys.stdout.flush()
while True:
    if link := listener.accept(60):
        threading.Thread(target=serve, args=(link, pool), daemon=True).start()
"""


class Peer:
    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdout is not None
        self.process = process
        self.endpoint = msgspec.json.decode(process.stdout.readline(), type=DataEndpoint)


@pytest.fixture
def peer() -> Iterator[Peer]:
    with subprocess.Popen([sys.executable, "-c", SERVER], stdout=subprocess.PIPE) as process:
        try:
            yield Peer(process)
        finally:
            process.kill()


@pytest.fixture(params=["shm", "tcp"])
def link(request: pytest.FixtureRequest, peer: Peer) -> Iterator[TensorLink]:
    link = connect_by(request.param, peer.endpoint)
    yield link
    link.abort()


def target() -> memoryview:
    return memoryview(bytearray(SLOT_BYTES))


def test_read_from_another_process(link: TensorLink) -> None:
    into = target()
    link.read([5], [into], DEADLINE_S)
    assert into == bytes([6]) * SLOT_BYTES


def test_one_host_is_noticed(peer: Peer) -> None:
    link = connect_by("auto", peer.endpoint)
    assert link.transport == "shm"
    link.abort()


def test_a_killed_peer_ends_the_link(peer: Peer, link: TensorLink) -> None:
    link.send(Attend(step_id=1, layer=0), b"q")
    link.recv(DEADLINE_S)
    peer.process.kill()
    with pytest.raises(LinkClosed):
        link.recv(DEADLINE_S)
    with pytest.raises(LinkClosed):
        link.read([5], [target()], DEADLINE_S)


def test_reads_after_a_kill_are_refused_though_the_memory_is_there(peer: Peer, link: TensorLink) -> None:
    peer.process.kill()
    peer.process.wait(DEADLINE_S)
    with pytest.raises(LinkClosed):
        link.read([5], [target()], DEADLINE_S)


def test_a_stopped_peer(peer: Peer, link: TensorLink) -> None:
    os.kill(peer.process.pid, signal.SIGSTOP)
    # A signal is under way when the call returns; the peer may still answer.
    os.waitid(os.P_PID, peer.process.pid, os.WSTOPPED | os.WNOWAIT)
    into = target()
    if link.transport == "shm":
        link.read([2], [into], DEADLINE_S)
        assert into == bytes([3]) * SLOT_BYTES
    else:
        with pytest.raises(LinkTimeout):
            link.read([2], [into], 0.05)
        with pytest.raises(LinkClosed):
            link.recv(DEADLINE_S)
    peer.process.kill()


def test_who_sends_to_a_stopped_peer_says_how_long_it_waits(peer: Peer, link: TensorLink) -> None:
    """More than the buffers between them hold: a step that sends queries must not stand still for 10 s."""
    os.kill(peer.process.pid, signal.SIGSTOP)
    os.waitid(os.P_PID, peer.process.pid, os.WSTOPPED | os.WNOWAIT)
    with pytest.raises(LinkTimeout, match=r"0\.050 s"):
        link.send(Attend(step_id=1, layer=0), bytes(64 * 2**20), timeout_s=0.05)
    with pytest.raises(LinkClosed, match=r"took too few bytes in 0\.05 s"):
        link.recv(DEADLINE_S)
    peer.process.kill()


def test_connecting_to_a_dead_peer(peer: Peer) -> None:
    peer.process.kill()
    peer.process.wait(DEADLINE_S)
    with pytest.raises(LinkClosed, match=r"cannot reach 127\.0\.0\.1"):
        connect_by("auto", peer.endpoint)


def test_connecting_to_a_stopped_peer(peer: Peer) -> None:
    os.kill(peer.process.pid, signal.SIGSTOP)
    with pytest.raises(LinkTimeout, match=r"link to b: no answer within 0\.050 s"):
        connect_by("auto", peer.endpoint, timeout_s=0.05)
    peer.process.kill()


def test_the_pool_is_gone_with_its_process(peer: Peer) -> None:
    others = pool_mappings()
    link = connect_by("shm", peer.endpoint)
    peer.process.kill()
    peer.process.wait(DEADLINE_S)
    assert pool_mappings() > others
    link.abort()
    assert pool_mappings() == others
