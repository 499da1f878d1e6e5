"""QueryLimit: one client cannot use up what all may ask, all together not what an event loop has."""

from __future__ import annotations

import pytest

from distkv.config import MembershipSettings
from distkv.control.cluster.gmanager import GManager
from distkv.control.commands import Answer, GManagerRequested, Tick
from distkv.control.query_limit import BURST, BURST_OF_ALL, MOST_ROUTES, PER_S, PER_S_OF_ALL, QueryLimit
from distkv.wire.messages.to_gmanager import ClusterQuery, ExplainQuery, Join
from tests.control.parts import calls, make_member


def answered(limit: QueryLimit, route: bytes, times: int, now: float) -> int:
    return sum(limit.wait_s(route, now) == 0 for _ in range(times))


def test_a_route_has_a_burst_and_then_so_many_a_second() -> None:
    limit = QueryLimit()
    assert answered(limit, b"a", 1000, 50.0) == BURST
    wait_s = limit.wait_s(b"a", 50.0)
    assert wait_s == pytest.approx(1 / PER_S)
    assert limit.wait_s(b"a", 50.0 + 0.9 * wait_s) > 0
    assert limit.wait_s(b"a", 50.0 + 1.01 * wait_s) == 0
    assert answered(limit, b"a", 1000, 1000.0) == BURST, "no more than a burst comes back"


def test_a_route_that_asks_in_a_loop_leaves_others_theirs() -> None:
    limit = QueryLimit()
    answered(limit, b"loop", 10**4, 50.0)
    assert answered(limit, b"a", BURST, 50.0) == BURST


def test_all_routes_together_have_a_bound() -> None:
    limit = QueryLimit()
    routes = [f"r{number}".encode() for number in range(10 * MOST_ROUTES)]
    assert sum(limit.wait_s(route, 50.0) == 0 for route in routes) == BURST_OF_ALL
    assert 0 < limit.wait_s(b"new", 50.0) <= 1.01 / PER_S_OF_ALL
    assert len(limit._by_route) == MOST_ROUTES


@pytest.mark.parametrize("query", [ExplainQuery(request_id="r"), ClusterQuery()])
def test_a_gmanager_of_thousands_refuses_for_next_to_nothing(query: ExplainQuery | ClusterQuery) -> None:
    """A client that asks in a loop delayed heartbeats: each answer looks at all instances."""
    gm = GManager(MembershipSettings())
    for number in range(2000):
        name = f"i{number}"
        gm.handle(GManagerRequested(name, name.encode(), Join(member=make_member(name), compat="model")), 0.0)
    while gm.next_deadline() <= 1.0:
        gm.handle(Tick(), 1.0)  # joiners are greeted
    event = GManagerRequested("client", b"client", query)
    (answer,) = (one for one in gm.handle(event, 1.0) if isinstance(one, Answer) and one.route == b"client")
    assert answer.body.retry_after_s == 0  # type: ignore[union-attr]
    for _ in range(BURST):
        (answer, *_) = gm.handle(event, 1.0)
    assert isinstance(answer, Answer) and answer.body.retry_after_s > 0  # type: ignore[union-attr]
    assert calls(lambda: gm.handle(event, 1.0)) < 35
    other = gm.handle(GManagerRequested("other", b"other", query), 1.0)
    assert isinstance(other[0], Answer) and other[0].body.retry_after_s == 0  # type: ignore[union-attr]
