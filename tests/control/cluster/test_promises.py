"""Promises: requests on their way to an instance, until its heartbeats know them."""

from __future__ import annotations

import pytest

from distkv.control.cluster.promises import KEPT_HEARTBEATS, MAX_PROMISES, Promises


@pytest.fixture
def promises() -> Promises:
    kept = Promises()
    kept.add("r1", 5, 70)
    kept.add("r2", 3, 40)
    return kept


def kept(promises: Promises) -> tuple[int, int, int]:
    promises.validate()
    return promises.num_requests, promises.num_blocks, promises.prompt_tokens


def test_a_request_counts_until_a_heartbeat_names_it(promises: Promises) -> None:
    assert kept(promises) == (2, 8, 110)
    promises.heartbeat(())
    promises.heartbeat(("another", "r1"))
    assert kept(promises) == (1, 3, 40)


def test_a_request_that_a_client_sends_again_has_the_name_before_and_more(promises: Promises) -> None:
    promises.heartbeat(("r2~7f00",))
    assert kept(promises) == (1, 5, 70)
    promises.add("r1~3", 4, 70)
    promises.heartbeat(("r1~3",))
    assert kept(promises) == (1, 4, 70), "one has come, and either is meant"


def test_one_that_does_not_come_is_forgotten(promises: Promises) -> None:
    for _ in range(KEPT_HEARTBEATS - 1):
        promises.heartbeat(())
    promises.add("r3", 1, 10)
    assert kept(promises) == (3, 9, 120)
    promises.heartbeat(())
    assert kept(promises) == (1, 1, 10)


def test_of_too_many_the_oldest_is_forgotten(promises: Promises) -> None:
    for number in range(MAX_PROMISES - 1):
        promises.add(f"n{number}", 1, 1)
    assert kept(promises) == (MAX_PROMISES, 3 + MAX_PROMISES - 1, 40 + MAX_PROMISES - 1)
    promises.clear()
    assert kept(promises) == (0, 0, 0)
