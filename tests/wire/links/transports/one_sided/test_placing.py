"""Reads by a library into the own pool, as where that lies on a GPU; here on memory of the host."""

from __future__ import annotations

import pytest
from structlog.testing import capture_logs

from distkv.errors import LinkClosed, MalformedMessage
from distkv.wire.links import PlacingLink
from distkv.wire.links.transports.one_sided.pool import OneSidedPool
from tests.wire.links.peers import DEADLINE_S, NUM_SLOTS, OPTIONAL, SLOT_BYTES, Pair, open_pair, why_not


@pytest.fixture(params=OPTIONAL)
def transport(request: pytest.FixtureRequest) -> str:
    name = str(request.param)
    if why := why_not(name):
        pytest.skip(why)
    return name


def block(pair: Pair, slot: int) -> bytes:
    return bytes(pair.pool.view[slot * SLOT_BYTES : (slot + 1) * SLOT_BYTES])


def test_blocks_arrive_in_the_own_pool(transport: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(OneSidedPool, "destination", lambda self, _endpoint: self.region)
    with capture_logs() as logs, open_pair(transport) as pair:
        assert [line["transport"] for line in logs if line["event"] == "blocks arrive on the GPU"] == [transport]
        link = pair.asking
        assert isinstance(link, PlacingLink)
        wanted, places = [3, 4, 20, 7], [40, 41, 9, 50]
        before = [block(pair, slot) for slot in range(NUM_SLOTS)]
        read = link.read_into_pool(wanted, places)
        assert read is not None
        read.wait(DEADLINE_S)
        for slot, place in zip(wanted, places, strict=True):
            before[place] = before[slot]
        assert [block(pair, slot) for slot in range(NUM_SLOTS)] == before
        into = memoryview(bytearray(SLOT_BYTES))
        link.read([5], [into], DEADLINE_S)
        assert into == before[5], "memory of the host is read into all the same"
        for slots, own_slots in (([NUM_SLOTS], [0]), ([0], [NUM_SLOTS]), ([0], [-1])):
            with pytest.raises(MalformedMessage, match="outside the pool of 64 slots"):
                link.read_into_pool(slots, own_slots)
        link.abort()
        with pytest.raises(LinkClosed):
            link.read_into_pool([1], [2])


def test_a_pool_of_the_host_has_its_views(transport: str) -> None:
    with open_pair(transport) as pair:
        assert isinstance(pair.asking, PlacingLink)
        assert pair.asking.read_into_pool([1], [2]) is None
