"""Two network namespaces, and a cable between them that is cut under reads."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from distkv.errors import LinkClosed, LinkTimeout
from distkv.wire.links import PoolMemory, Registrations
from tests.wire.cable import ADDRESS, NAMESPACE, THERE, WITHIN, cable, ip, needs_root
from tests.wire.links.faults.owner import DEADLINE_S, SLOT_BYTES, Owner, running

SHORT_S = 0.5

pytestmark = needs_root


@pytest.fixture
def transport() -> str:
    """What reaches a peer over any cable; others have tests of their own."""
    return "tcp"


@pytest.fixture
def owner(transport: str, registered: Registrations) -> Iterator[Owner]:
    """At the other end of the cable."""
    with cable(), running(transport, f"{ADDRESS}:7791", within=WITHIN) as owner:
        yield owner


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
