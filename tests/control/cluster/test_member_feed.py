"""MemberFeed: changes go to all in few messages, whole lists to who asks, and neither without bound."""

from __future__ import annotations

import pytest

from distkv.control.cluster.member_feed import AHEAD_S, COALESCE_S, MEMBERS_AT_ONCE, MEMBERS_PER_S, MemberFeed
from distkv.control.commands import Broadcast
from distkv.wire.messages.member_versions import PART_MEMBERS
from distkv.wire.messages.to_gmanager import MembersQuery
from tests.control.parts import make_member

ROUTES = (b"x", b"y")


def feed_of(count: int) -> MemberFeed:
    feed = MemberFeed(1)
    for index in range(count):
        feed.log.put(make_member(f"i{index}"))
    return feed


def flush(feed: MemberFeed, now: float, routes: tuple[bytes, ...] = ROUTES) -> list[Broadcast]:
    sent = feed.flush(now, lambda: routes)
    feed.validate()
    return sent


def names(sent: list[Broadcast]) -> list[str]:
    return [member.instance_id for one in sent for member in one.body.members]


def test_the_first_change_goes_at_once_those_that_follow_together() -> None:
    feed = feed_of(1)
    assert names(flush(feed, 10.0)) == ["i0"]
    for index in range(1, 5):
        feed.log.put(make_member(f"i{index}"))
        assert flush(feed, 10.0 + 0.01 * index) == []
    due = feed.next_deadline()
    assert due == 10.0 + COALESCE_S
    (change,) = flush(feed, due)
    assert change.routes == ROUTES and (change.body.base, change.body.version) == (1, 5)
    assert feed.next_deadline() == float("inf") and flush(feed, 99.0) == []


@pytest.mark.parametrize("count", [1000, 10_000])
def test_one_change_costs_one_member_to_each(count: int) -> None:
    feed = feed_of(count)
    flush(feed, 0.0, ())
    routes = tuple(b"%d" % index for index in range(count))
    feed.log.put(make_member("i7", state="dead"))
    (change,) = flush(feed, 10.0, routes)
    assert names([change]) == ["i7"] and len(change.routes) == count


def test_many_that_ask_for_the_same_get_the_same_message() -> None:
    feed = feed_of(3)
    flush(feed, 0.0)
    for route in (b"1", b"2", b"3"):
        feed.ask(route, MembersQuery())
    feed.ask(b"4", MembersQuery(incarnation=1, version=2))
    feed.ask(b"5", MembersQuery(changes_only=True))
    whole, change, sign = flush(feed, 1.0)
    assert (whole.routes, names([whole])) == ((b"1", b"2", b"3"), ["i0", "i1", "i2"])
    assert (change.routes, names([change])) == ((b"4",), ["i2"])
    assert (sign.routes, names([sign]), sign.body.base) == ((b"5",), [], 3)


def test_a_cluster_that_asks_for_everything_at_once_is_served_at_a_bounded_rate() -> None:
    feed, count = feed_of(5000), 500
    flush(feed, 0.0, ())
    for index in range(count):
        feed.ask(b"%d" % index, MembersQuery())
    now, sent, served = 1.0, 0, []
    while len(served) < count:
        now = max(now, feed.next_deadline())
        answers = flush(feed, now)
        members = sum(len(one.routes) * len(one.body.members) for one in answers)
        assert members < MEMBERS_AT_ONCE + 5000 and all(len(one.body.members) <= PART_MEMBERS for one in answers)
        sent += members
        served += [route for one in answers if not one.body.more for route in one.routes]
    assert served == [b"%d" % index for index in range(count)], "first come, first served"
    assert sent == count * 5000
    assert now - 1.0 >= (sent - MEMBERS_AT_ONCE - 5000) / MEMBERS_PER_S - AHEAD_S


def test_a_change_reaches_all_while_many_wait_for_the_list() -> None:
    feed = feed_of(5000)
    flush(feed, 0.0, ())
    for index in range(100):
        feed.ask(b"%d" % index, MembersQuery())
    flush(feed, 1.0)
    feed.log.put(make_member("i7", state="dead"))
    sent = flush(feed, feed.next_deadline())
    assert sent[0].routes == ROUTES and names(sent[:1]) == ["i7"], "what changed comes first"


def test_a_newcomer_is_greeted_with_the_list_or_with_itself() -> None:
    small, large = feed_of(PART_MEMBERS), feed_of(PART_MEMBERS + 1)
    for feed in (small, large):
        feed.greet(b"new", "i3")
    assert len(flush(small, 10.0)[0].body.members) == PART_MEMBERS
    greeting = flush(large, 10.0)[0]
    assert greeting.routes == (b"new",) and names([greeting]) == ["i3"]
    assert greeting.body.base == greeting.body.version == PART_MEMBERS + 1


def test_a_newcomer_is_greeted_when_the_others_are_told() -> None:
    feed = feed_of(1)
    flush(feed, 10.0)
    feed.log.put(make_member("i1"))
    feed.greet(b"new", "i1")
    assert flush(feed, 10.01) == [], "changes that come together go together"
    greeting, told = flush(feed, feed.next_deadline())
    assert greeting.routes == (b"new",) and names([greeting]) == ["i0", "i1"]
    assert told.routes == ROUTES and names([told]) == ["i1"]
    feed.greet(b"again", "i1")
    assert [one.routes for one in flush(feed, 11.0)] == [(b"again",)], (
        "it changed nothing: there is nothing to wait for"
    )
