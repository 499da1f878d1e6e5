"""MemberFeed: changes go to all in few messages, whole lists to who asks, and neither without bound."""

from __future__ import annotations

import pytest

from distkv.control.cluster.member_feed import (
    AHEAD_S,
    COALESCE_S,
    GREETINGS_AT_ONCE,
    MEMBERS_AT_ONCE,
    MEMBERS_PER_S,
    SETTLING_S,
    MemberFeed,
)
from distkv.control.commands import Broadcast
from distkv.wire.messages.member_versions import PART_MEMBERS, MemberCursor
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
        feed.greet(b"new", "i3", is_new=True)
    assert len(flush(small, 10.0)[0].body.members) == PART_MEMBERS
    greeting, told, *rest = flush(large, 10.0)
    assert greeting.routes == (b"new",) and names([greeting]) == ["i3"]
    assert greeting.body.base == greeting.body.version == PART_MEMBERS + 1
    assert told.routes == ROUTES
    cursor = MemberCursor()
    cursor.take(greeting.body)
    known = {name for one in rest if b"new" in one.routes and cursor.take(one.body) for name in names([one])}
    assert len(known) == PART_MEMBERS + 1 and not cursor.is_behind, "the list follows, and nobody has asked"
    large.log.put(make_member("i7", state="dead"))
    (change,) = flush(large, large.next_deadline(), (*ROUTES, b"new"))
    assert change.routes == (*ROUTES, b"new") and cursor.take(change.body), "what changes from then on, as all others"


def test_who_was_there_before_is_not_sent_the_list_again() -> None:
    feed = feed_of(PART_MEMBERS + 1)
    flush(feed, 0.0)
    feed.greet(b"x", "i3", is_new=False)
    assert names(flush(feed, 10.0)) == ["i3"] and feed.is_quiet


def test_a_newcomer_is_greeted_when_the_others_are_told() -> None:
    feed = feed_of(1)
    flush(feed, 10.0)
    feed.log.put(make_member("i1"))
    feed.greet(b"new", "i1", is_new=True)
    assert flush(feed, 10.01) == [], "changes that come together go together"
    greeting, told = flush(feed, feed.next_deadline())
    assert greeting.routes == (b"new",) and names([greeting]) == ["i0", "i1"]
    assert told.routes == ROUTES and names([told]) == ["i1"]
    feed.greet(b"again", "i1", is_new=False)
    assert [one.routes for one in flush(feed, 11.0)] == [(b"again",)], (
        "it changed nothing: there is nothing to wait for"
    )


def test_many_newcomers_are_greeted_some_at_a_time() -> None:
    feed, count = feed_of(1000), 5 * GREETINGS_AT_ONCE
    flush(feed, 0.0, ())
    for index in range(count):
        feed.greet(b"%d" % index, f"i{index}", is_new=False)
    for _ in range(4):
        assert len(flush(feed, 10.0)) == GREETINGS_AT_ONCE
        assert feed.next_deadline() <= 10.0, "the next are due at once"
    assert len(flush(feed, 10.0)) == GREETINGS_AT_ONCE and feed.is_quiet


def test_who_waits_for_the_list_is_sent_no_changes_beside_it() -> None:
    feed = feed_of(300)
    flush(feed, 0.0)
    feed.ask(b"x", MembersQuery(incarnation=1, version=7))
    feed.ask(b"y", MembersQuery(incarnation=1, version=300))
    feed.ask(b"z", MembersQuery(changes_only=True))
    feed.log.put(make_member("i7", state="dead"))
    told, *answers = flush(feed, 10.0, (b"x", b"y", b"z", b"w"))
    assert told.routes == (b"y", b"z", b"w") and names([told]) == ["i7"]
    missed = [one for one in answers if one.routes == (b"x",)]
    assert len(names(missed)) == 293 and names(missed)[-1] == "i7"


class Newcomers:
    """Instances that join one gManager, follow its list, and ask once a second what they miss."""

    def __init__(self, count: int) -> None:
        self.feed = MemberFeed(1)
        self.sent = 0
        self.known: dict[bytes, set[str]] = {b"%d" % index: set() for index in range(count)}
        self._cursors = {route: MemberCursor() for route in self.known}
        for index, route in enumerate(self.known):
            self.feed.log.put(make_member(f"i{index}"))
            self.feed.greet(route, f"i{index}", is_new=True)
            self.flush(0.0001 * index, tuple(self.known)[: index + 1])

    def flush(self, now: float, routes: tuple[bytes, ...]) -> None:
        for one in flush(self.feed, now, routes):
            self.sent += len(one.routes) * len(one.body.members)
            for route in one.routes:
                if self._cursors[route].take(one.body):
                    self.known[route].update(names([one]))

    def run(self) -> float:
        """Until nothing is left to be sent; when the last of it is."""
        now = next_ask_s = ended_s = 0.5
        while not self.feed.is_quiet or any(cursor.is_behind for cursor in self._cursors.values()):
            if now >= next_ask_s:
                next_ask_s += 1.0
                for route, cursor in self._cursors.items():
                    if cursor.is_behind:
                        self.feed.ask(route, cursor.query())
            self.flush(now, tuple(self.known))
            ended_s = now
            now = max(now, min(self.feed.next_deadline(), next_ask_s))
        return ended_s


@pytest.mark.parametrize("count", [300, 1000])
def test_instances_that_join_at_once_are_sent_each_member_hardly_more_than_once(count: int) -> None:
    newcomers = Newcomers(count)
    ended_s = newcomers.run()
    assert all(len(known) == count for known in newcomers.known.values())
    assert newcomers.sent <= 1.2 * count**2
    assert ended_s <= 0.5 + 1.2 * count**2 / MEMBERS_PER_S, "and nobody waits for more than that"


def test_a_list_settles_some_time_after_the_first_has_joined() -> None:
    """Not after the gManager began, which may have waited for minutes: they are started together."""
    feed = MemberFeed(1)
    feed.ask(b"gateway", MembersQuery())
    assert [one.body.settles_in_s for one in flush(feed, 10.0, ())] == [SETTLING_S]
    feed.log.put(make_member("i0"))
    assert [one.body.settles_in_s for one in flush(feed, 100.0)] == [SETTLING_S]
    feed.log.put(make_member("i1"))
    assert [one.body.settles_in_s for one in flush(feed, 104.0)] == [SETTLING_S - 4.0]
    feed.log.put(make_member("i2"))
    assert [one.body.settles_in_s for one in flush(feed, 100.0 + SETTLING_S)] == [0.0]


def test_a_list_is_settled_when_as_many_have_joined_as_are_expected() -> None:
    feed = MemberFeed(1, expected=2)
    feed.log.put(make_member("i0"))
    assert [one.body.settles_in_s for one in flush(feed, 100.0)] == [SETTLING_S]
    feed.log.put(make_member("i1"))
    assert [one.body.settles_in_s for one in flush(feed, 101.0)] == [0.0]
    feed.log.remove("i1")
    assert [one.body.settles_in_s for one in flush(feed, 102.0)] == [0.0], "it is gone, and was known"


def test_a_list_that_nobody_was_left_in_settles_anew() -> None:
    """A gManager outlives its instances: the first of the next ones refused for good what fits once all have joined."""
    feed = MemberFeed(1)
    feed.log.put(make_member("i0"))
    flush(feed, 100.0)
    feed.log.remove("i0")
    assert [one.body.settles_in_s for one in flush(feed, 500.0)] == [SETTLING_S]
    feed.log.put(make_member("j0"))
    assert [one.body.settles_in_s for one in flush(feed, 600.0)] == [SETTLING_S]
    feed.log.put(make_member("j1"))
    assert [one.body.settles_in_s for one in flush(feed, 607.0)] == [SETTLING_S - 7.0]
