"""What goes wrong at one end, and what the other has of it."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import msgspec
import pytest

from distkv.errors import LinkClosed, LinkTimeout, MalformedMessage
from distkv.wire.links.transports.ucx.reader import WINDOW
from distkv.wire.messages.data import Attend
from tests.wire.links.conftest import pool_mappings
from tests.wire.links.peers import DEADLINE_S, in_thread
from tests.wire.links.transports.ucx.owners import NUM_SLOTS, SLOT_BYTES, Asking, Owner, asking_process

pytestmark = pytest.mark.usefixtures("ucx")

EMULATED = {"UCX_TLS": "tcp", "UCX_PROTO_EMULATION_ENABLE": "y"}
"""The environment goes before what distkv sets: reads that wait for the owner's thread, as it never lets them here."""


@pytest.fixture
def asking() -> Iterator[Asking]:
    with asking_process() as asking:
        yield asking


@pytest.fixture
def owner() -> Iterator[Owner]:
    with Owner() as owner:
        yield owner


@pytest.fixture
def emulating(monkeypatch: pytest.MonkeyPatch) -> Iterator[Owner]:
    for name, value in EMULATED.items():
        monkeypatch.setenv(name, value)
    with Owner() as owner:
        yield owner


def test_more_gets_than_are_under_way_at_once(asking: Asking, owner: Owner) -> None:
    count = 3 * WINDOW + 7
    slots = [(7 * i) % NUM_SLOTS for i in range(count)]
    views = [asking.memory.view[i * 64 : (i + 1) * 64] for i in range(count)]
    asking.link(owner.endpoint).read(slots, views, DEADLINE_S, (100, 64))
    assert all(view == bytes([slot + 1]) * 64 for slot, view in zip(slots, views, strict=True))


def test_a_killed_owner_ends_the_link_at_once(asking: Asking, owner: Owner) -> None:
    link = asking.link(owner.endpoint)
    owner.kill()
    for wait in (lambda: asking.start(link).wait(DEADLINE_S), lambda: link.recv(DEADLINE_S)):
        began = time.monotonic()
        with pytest.raises(LinkClosed):
            wait()
        assert time.monotonic() - began < DEADLINE_S / 2


def test_an_owner_killed_under_a_read_that_waits_for_it(asking: Asking, emulating: Owner) -> None:
    link = asking.link(emulating.endpoint)
    emulating.stop()
    read = asking.start(link)
    assert not read.poll()
    emulating.kill()
    began = time.monotonic()
    with pytest.raises(LinkClosed):
        read.wait(DEADLINE_S)
    assert time.monotonic() - began < DEADLINE_S / 2


def test_a_link_that_was_found_dead_ends_its_reads(asking: Asking, emulating: Owner) -> None:
    link = asking.link(emulating.endpoint)
    emulating.stop()
    read = asking.start(link)
    emulating.kill()
    with pytest.raises(LinkClosed):
        link.recv(DEADLINE_S)
    with pytest.raises(LinkClosed):
        read.wait(DEADLINE_S)
    held = pool_mappings()
    asking.memory.close()
    assert pool_mappings() == held - 1, "nothing holds the destination"


def test_a_read_completes_while_the_owner_is_stopped(asking: Asking, owner: Owner) -> None:
    link = asking.link(owner.endpoint)
    owner.stop()
    assert asking.reads_rightly(link)
    with pytest.raises(LinkTimeout):
        link.recv(0.01)


def test_a_read_that_waits_for_a_stopped_owner_ends_by_its_deadline(asking: Asking, emulating: Owner) -> None:
    link = asking.link(emulating.endpoint)
    emulating.stop()
    read = asking.start(link)
    with pytest.raises(LinkTimeout, match=r"no answer within 0\.050 s"):
        read.wait(0.05)
    with pytest.raises(LinkClosed):
        link.recv(DEADLINE_S)
    nothing_arrives(asking, emulating)


def test_abort_wakes_who_waits_for_a_stopped_owner(asking: Asking, emulating: Owner) -> None:
    link = asking.link(emulating.endpoint)
    emulating.stop()
    read = asking.start(link)
    waiting = threading.Event()

    def wait() -> None:
        waiting.set()
        with pytest.raises(LinkClosed, match="closed on this side"):
            read.wait(DEADLINE_S)

    began = time.monotonic()
    with in_thread(wait):
        assert waiting.wait(DEADLINE_S)
        link.abort()
    assert time.monotonic() - began < DEADLINE_S / 2
    nothing_arrives(asking, emulating)


def nothing_arrives(asking: Asking, owner: Owner) -> None:
    """The memory of a read that failed was given back; the owner answers now, or is gone."""
    asking.memory.view[:] = b"\xa5" * asking.memory.size_bytes
    owner.resume()
    try:
        asking.link(owner.endpoint).read([0], [memoryview(bytearray(SLOT_BYTES))], DEADLINE_S)
    except (LinkClosed, LinkTimeout):
        owner.kill()
    assert asking.memory.view == b"\xa5" * asking.memory.size_bytes


def test_aborts_under_reads_leave_memory_and_owner_alone(asking: Asking, owner: Owner) -> None:
    for number in range(12):
        link = asking.link(owner.endpoint)

        def wait(link: object = link) -> None:
            with pytest.raises(LinkClosed):
                while True:
                    asking.start(link).wait(DEADLINE_S)  # type: ignore[arg-type]

        with in_thread(wait):
            for _ in range(number):
                asking.memory.reading([0])
            link.abort()
        asking.memory.view[:] = b"\xa5" * asking.memory.size_bytes
        echo = asking.link(owner.endpoint)
        echo.send(Attend(step_id=number, layer=0))
        echo.recv(DEADLINE_S)
        assert asking.memory.view == b"\xa5" * asking.memory.size_bytes
    assert owner.lives


READING = """
import sys, msgspec
from distkv.wire.messages.common import DataEndpoint
from tests.wire.links.transports.ucx.owners import asking_process
endpoint = msgspec.json.decode(sys.argv[1], type=DataEndpoint)
with asking_process() as asking:
    link = asking.link(endpoint)
    print("reading", flush=True)
    while True:
        assert asking.reads_rightly(link)
"""


def test_killed_readers_leave_the_owner_alone(asking: Asking, owner: Owner) -> None:
    endpoint = msgspec.json.encode(owner.endpoint).decode()
    for _ in range(3):
        with subprocess.Popen([sys.executable, "-c", READING, endpoint], stdout=subprocess.PIPE) as reader:
            assert reader.stdout is not None and reader.stdout.readline() == b"reading\n"
            reader.kill()
    assert asking.reads_rightly(asking.link(owner.endpoint))


def test_an_owner_that_restarts_on_the_same_address(asking: Asking) -> None:
    with Owner() as first:
        asking.link(first.endpoint)
        old, address = first.endpoint, first.endpoint.address
    with Owner(address) as second:
        with pytest.raises(MalformedMessage, match="not sealed with the key of its endpoint"):
            asking.link(old)
        assert asking.reads_rightly(asking.link(second.endpoint))


def test_what_is_said_of_a_pool_is_corrupted_on_the_way(
    asking: Asking, owner: Owner, monkeypatch: pytest.MonkeyPatch
) -> None:
    from distkv.wire.links.transports.one_sided import pool

    def spoilt(*arguments: object) -> bytes:
        told = bytearray(said(*arguments))  # type: ignore[arg-type]
        told[-1] ^= 1
        return bytes(told)

    said = pool.ask_to_attach
    monkeypatch.setattr(pool, "ask_to_attach", spoilt)
    with pytest.raises(MalformedMessage, match="not sealed"):
        asking.link(owner.endpoint)
    monkeypatch.undo()
    assert asking.reads_rightly(asking.link(owner.endpoint))
