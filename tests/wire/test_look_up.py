"""A name that nobody answers for holds nobody longer than it wants to wait."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from distkv.errors import LinkClosed, LinkTimeout
from distkv.wire import look_up as module
from distkv.wire.links.transports.sockets import open_tcp
from distkv.wire.look_up import look_up
from distkv.wire.messages.common import DataEndpoint
from tests.threads import no_threads
from tests.waiting import DEADLINE_S
from tests.wire.name_server import NAME, NameServer, name_server


@pytest.fixture
def server() -> Iterator[NameServer]:
    with name_server() as server:
        yield server


def test_who_has_waited_for_a_name_goes_on_and_all_that_wait_share_one_thread(server: NameServer) -> None:
    for _ in range(3):
        with pytest.raises(TimeoutError):
            look_up(NAME, 0.001)
    assert server.asked == 1
    server.may_answer.set()
    assert look_up(NAME, DEADLINE_S) == ["127.0.0.1"]


def test_a_numeric_address_needs_no_thread(server: NameServer) -> None:
    with no_threads():
        assert look_up("127.0.0.1", DEADLINE_S) == ["127.0.0.1"]
        with pytest.raises(OSError):
            look_up(NAME, DEADLINE_S)
    assert not module._under_way


def test_a_link_to_a_name_ends_by_its_own_deadline_and_else_opens(server: NameServer) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        endpoint = DataEndpoint(address=f"{NAME}:{listener.getsockname()[1]}")
        with pytest.raises(LinkTimeout):
            open_tcp(endpoint, "peer", 0.001)
        server.may_answer.set()
        open_tcp(endpoint, "peer", DEADLINE_S).close()
        server.addresses = "127.0.0.2", "127.0.0.1"  # nobody listens at the first
        open_tcp(endpoint, "peer", DEADLINE_S).close()
    server.fails = True
    with pytest.raises(LinkClosed, match="Name or service not known"):
        open_tcp(endpoint, "peer", DEADLINE_S)
