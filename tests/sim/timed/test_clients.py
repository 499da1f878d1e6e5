"""Simulated clients: tokens of a batch come together, and go to those who still wait for them."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

from distkv.client.instances import dispatch
from distkv.sim.timed import clients
from distkv.sim.timed.clients import Clients
from distkv.sim.timed.cluster import TimedCluster
from tests.control.parts import calls
from tests.sim.timed.parts import spec, trace


def waiting(count: int) -> Clients:
    """Of so many requests, all of which are due at 0."""
    cluster = TimedCluster(spec(instances=1))
    cluster.clients.play(trace(*[(0.0, 10, 400)] * count), 0.0)
    cluster.agenda.run(until=0.0)
    return cluster.clients


@pytest.mark.parametrize("is_over", [False, True])
def test_tokens_of_a_batch_cost_the_same_whatever_its_size(is_over: bool) -> None:
    """But for its first ones, which say who is in it."""
    costs = []
    for count in (2, 40):
        clients = waiting(count)
        names, more = tuple(f"r{index}" for index in range(count)), np.array([3.0])
        clients.receive_tokens("i0", names, np.array([1.0, 2.0]))
        if is_over:
            clients.stop("it is over")
        costs.append(calls(partial(clients.receive_tokens, "i0", names, more)))
        expected = [1.0, 2.0] if is_over else [1.0, 2.0, 3.0]
        assert all(list(one.times_s) == expected for one in clients.outcomes)
    assert costs[0] == costs[1]


def test_a_batch_that_changes_leaves_each_the_tokens_that_it_got() -> None:
    clients = waiting(2)
    clients.receive_tokens("i0", ("r0",), np.array([1.0]))
    clients.receive_tokens("i1", ("r1", "unknown"), np.array([1.5]))
    clients.receive_tokens("i1", ("r1",), np.array([2.5, 3.0]))
    assert [list(one.times_s) for one in clients.outcomes] == [[1.0], [1.5, 2.5, 3.0]]


def test_they_try_as_often_as_those_that_they_stand_for() -> None:
    """The simulator may not import the client, so its limits are written twice."""
    for name in ("MAX_DISPATCHES", "MAX_MOVES", "AT_ONCE_S"):
        assert getattr(clients, name) == getattr(dispatch, name)
