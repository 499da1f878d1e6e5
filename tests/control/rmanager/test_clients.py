"""ClientBook: which clients were not heard for too long, by an instance that may have been stopped itself."""

from __future__ import annotations

import math

import pytest

from distkv.control.rmanager.clients import CLIENT_TIMEOUT_S, LAST_S, MOST_UNREAD_S, ClientBook


def test_who_is_not_heard_is_silent_once() -> None:
    clients = ClientBook()
    clients.submitted(b"a", 5.0)
    clients.alive(b"stranger", 5.0)
    found, now = [], 5.0
    while (now := clients.next_deadline()) < math.inf:
        found += [(route, now) for route in clients.silent(False, now)]
    assert found == [(b"a", 5.0 + CLIENT_TIMEOUT_S)]


@pytest.mark.parametrize("heard", [ClientBook.submitted, ClientBook.alive])
def test_one_that_is_heard_at_the_last_moment_has_all_of_its_time_anew(heard) -> None:  # type: ignore[no-untyped-def]
    clients = ClientBook()
    clients.submitted(b"a", 0.0)
    assert clients.silent(False, CLIENT_TIMEOUT_S - LAST_S) == []
    heard(clients, b"a", CLIENT_TIMEOUT_S - 0.1)
    assert (
        clients.silent(False, CLIENT_TIMEOUT_S) == [] and clients.next_deadline() == 2 * CLIENT_TIMEOUT_S - LAST_S - 0.1
    )
    clients.gone(b"a")
    assert clients.next_deadline() == math.inf


def test_an_instance_that_was_stopped_reads_what_came_before_it_judges() -> None:
    """It failed every request, while the signs of life lay in its inbox."""
    clients = ClientBook()
    clients.submitted(b"a", 0.0)
    clients.submitted(b"b", 0.0)
    assert clients.silent(False, 60.0) == []
    clients.alive(b"a", 60.0)
    assert clients.silent(False, 60.0 + LAST_S) == [b"b"]


def test_nobody_is_judged_while_messages_wait_to_be_read() -> None:
    """Behind one message of millions of parts: everybody's streams were ended, whose signs of life lay behind it."""
    clients = ClientBook()
    clients.submitted(b"a", 0.0)
    clients.submitted(b"b", 0.0)
    now = CLIENT_TIMEOUT_S - LAST_S
    assert clients.silent(False, now) == []
    for _ in range(10):
        now = clients.next_deadline()
        assert clients.silent(True, now) == []
    clients.alive(b"a", now)
    assert clients.silent(False, clients.next_deadline()) == [b"b"]


def test_who_keeps_an_instance_reading_for_ever_keeps_no_silent_client_alive() -> None:
    clients = ClientBook()
    clients.submitted(b"a", 0.0)
    found: list[bytes] = []
    while not found:
        now = clients.next_deadline()
        found = clients.silent(True, now)
    assert found == [b"a"] and now == CLIENT_TIMEOUT_S + MOST_UNREAD_S
    clients.submitted(b"a", 100.0)
    assert clients.silent(True, 100.0 + CLIENT_TIMEOUT_S) == [], "that time begins anew"
