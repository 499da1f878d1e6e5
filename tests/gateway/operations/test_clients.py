"""Whose a request is."""

from __future__ import annotations

import pytest

from distkv.gateway.operations.client_queue import ClientQueue
from distkv.gateway.operations.clients import client_of, is_of_key


@pytest.mark.parametrize(
    ("host", "client"),
    [
        ("192.0.2.7", "192.0.2.7"),
        ("::ffff:192.0.2.7", "192.0.2.7"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("2001:db8:1:2::9", "2001:db8:1:2::/64"),
        ("::1", "::/64"),
    ],
)
def test_an_address_stands_for_its_subscriber(host: str, client: str) -> None:
    assert client_of({"client": (host, 1234)}) == client


def test_a_key_goes_before_an_address() -> None:
    scope = {"client": ("192.0.2.7", 1)}
    is_of_key(scope, 1)
    assert client_of(scope) == "key 1" and client_of({}) == ""


def test_items_of_clients_are_taken_by_turns() -> None:
    queue: ClientQueue[int] = ClientQueue()
    for item, client in enumerate("aaabbc"):
        queue.put(client, item)
    queue.remove("a", 1)
    queue.remove("a", 1)
    queue.remove("nobody", 1)
    assert len(queue) == 5 and queue.first() == ("a", 0)
    assert [queue.take() for _ in range(5)] == [("a", 0), ("b", 3), ("c", 5), ("a", 2), ("b", 4)]
    assert not queue
