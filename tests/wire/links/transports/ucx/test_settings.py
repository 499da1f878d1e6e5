"""What UCX is told, and what it opens."""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import socket
import subprocess
import sys
from collections.abc import Sequence

import msgspec
import psutil
import pytest

from distkv.errors import ConfigError, LinkClosed
from distkv.wire.links import PoolMemory, register
from distkv.wire.links.transports.ucx import library
from tests.wire.cable import ADDRESS, OWN_ADDRESS
from tests.wire.links.peers import DEADLINE_S, Pair, open_pair, random_pool
from tests.wire.links.transports.ucx.owners import Owner, asking_process


def listening(pid: int) -> list[str]:
    return [one.laddr.ip for one in psutil.Process(pid).net_connections("inet") if one.status == psutil.CONN_LISTEN]


@pytest.mark.usefixtures("ucx")
def test_ports_are_open_on_the_device_of_the_link_alone() -> None:
    with Owner() as owner, asking_process() as asking:
        assert listening(owner.process.pid) == ["127.0.0.1"], "that of the links; UCX waits for the first who asks"
        asking.link(owner.endpoint)
        assert len(listening(owner.process.pid)) > 1
        assert {*listening(owner.process.pid), *listening(os.getpid())} == {"127.0.0.1"}


@pytest.mark.usefixtures("ucx")
def test_a_stranger_at_such_a_port_disturbs_nobody() -> None:
    with Owner() as owner, asking_process() as asking:
        link = asking.link(owner.endpoint)
        held = psutil.Process(owner.process.pid).net_connections("inet")
        ports = {one.laddr.port for one in held if one.status == psutil.CONN_LISTEN}
        ports.remove(int(owner.endpoint.address.split(":")[1]))
        for port, size in itertools.product(ports, (0, 1, 7, 8, 64, 5000, 200_000)):
            stranger = socket.create_connection(("127.0.0.1", port), timeout=DEADLINE_S)
            with stranger, contextlib.suppress(OSError):
                stranger.sendall(random.Random(size).randbytes(size))
        assert asking.reads_rightly(link)
        assert asking.reads_rightly(asking.link(owner.endpoint))


@pytest.mark.usefixtures("ucx")
def test_the_environment_goes_before_our_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    with Owner() as owner, asking_process() as asking:
        monkeypatch.setenv("UCX_NET_DEVICES", "no-such-device")
        with pytest.raises(LinkClosed, match="unreachable"):
            asking.link(owner.endpoint)
        monkeypatch.delenv("UCX_NET_DEVICES")
        assert asking.reads_rightly(asking.link(owner.endpoint))


@pytest.mark.usefixtures("ucx")
def test_where_nothing_reads_one_sidedly_there_is_no_link() -> None:
    """Between hosts without RDMA UCX would have the owner's thread answer; such gets are refused."""
    with Owner(UCX_TLS="tcp") as owner, asking_process() as asking:
        with pytest.raises(LinkClosed, match="UCX reads nothing one-sidedly"):
            asking.link(owner.endpoint)
        assert owner.lives


@pytest.mark.usefixtures("ucx")
def test_versions_that_differ_are_not_linked(monkeypatch: pytest.MonkeyPatch) -> None:
    with Owner() as owner:
        monkeypatch.setattr(library.load(), "version", (1, 99))
        with asking_process() as asking, pytest.raises(LinkClosed, match=r"the peer has UCX .*, here is 1\.99"):
            asking.link(owner.endpoint)


@pytest.mark.usefixtures("ucx")
def test_a_process_that_is_read_from_and_reads() -> None:
    """Both by one context: neither ends the other's."""
    with random_pool() as pool, open_pair("ucx", pool) as first:
        with open_pair("ucx", pool) as second:
            assert both_read(first, second)
        assert both_read(first)


def both_read(*pairs: Pair) -> bool:
    into = bytearray(pairs[0].pool.slot_bytes)
    for pair in pairs:
        pair.asking.read([1], [memoryview(into)], 5.0)
    return into == pairs[0].pool.view[pair.pool.slot_bytes : 2 * pair.pool.slot_bytes]


def test_a_missing_library_is_named_with_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> library.Ucp:
        raise ImportError("there is no libucp that can be used")

    monkeypatch.setattr(library, "load", missing)
    with PoolMemory(4096, 2) as pool, pytest.raises(ConfigError) as caught:
        register(pool, "ucx")
    assert caught.value.key == "tensor_transport"
    assert "ucx cannot be used: there is no libucp" in str(caught.value)
    assert "pip install 'llm-distkv[ucx]'" in str(caught.value)


@pytest.mark.usefixtures("ucx")
def test_an_old_library_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "MIN_VERSION", (9, 9))
    library.load.cache_clear()
    try:
        with PoolMemory(4096, 2) as pool, pytest.raises(ConfigError, match=r"is installed, 9\.9 is needed"):
            register(pool, "ucx")
    finally:
        library.load.cache_clear()


def test_nothing_is_left_of_how_it_is_loaded() -> None:
    assert "UCX_LOG_LEVEL" not in os.environ and "UCX_DEBUG_SIGNO" not in os.environ


READER = """
import os, sys, msgspec, psutil
from distkv.wire.messages.common import DataEndpoint
from tests.wire.links.transports.ucx.owners import asking_process
with asking_process() as asking:
    link = asking.link(msgspec.json.decode(sys.argv[1], type=DataEndpoint))
    assert asking.reads_rightly(link)
    held = {one.laddr.ip for one in psutil.Process().net_connections("inet") if one.laddr}
print("read by", link.transport, *sorted(held))
"""


@pytest.mark.usefixtures("ucx")
def test_between_network_namespaces(through: Sequence[str]) -> None:
    """The reader is a new process: UCX learns routes once."""
    with Owner(f"{ADDRESS}:0", through=through) as owner:
        command = [sys.executable, "-c", READER, msgspec.json.encode(owner.endpoint).decode()]
        done = subprocess.run(command, capture_output=True, text=True, timeout=2 * DEADLINE_S)
        assert done.stdout == f"read by ucx {OWN_ADDRESS}\n", done.stderr
