"""The member list as changes: whoever follows it, with whatever loss, ends up with the whole of it."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from distkv.wire.messages import member_versions
from distkv.wire.messages.common import Member
from distkv.wire.messages.member_versions import KEPT_GONE, PART_MEMBERS, MemberCursor, MemberLog
from distkv.wire.messages.to_gmanager import MembersQuery
from distkv.wire.messages.to_rmanager import Members
from tests.control.parts import calls, make_member
from tests.examples import examples


class Follower:
    """Keeps a list by what it is sent."""

    def __init__(self) -> None:
        self.cursor = MemberCursor()
        self.members: dict[str, Member] = {}

    def receive(self, message: Members) -> None:
        if not self.cursor.take(message):
            return
        self.members.update((member.instance_id, member) for member in message.members)
        named = self.cursor.take_whole(message)
        for name in {*message.gone, *(() if named is None else self.members.keys() - named)}:
            self.members.pop(name, None)


def filled(count: int) -> MemberLog:
    log = MemberLog(1)
    for index in range(count):
        log.put(make_member(f"i{index}"))
    return log


def test_one_change_of_many_is_one_member() -> None:
    sizes = []
    for count in (10, 1000):
        log = filled(count)
        before = log.version
        log.put(make_member("i5", state="dead"))
        (change,) = log.since(before)
        sizes.append(len(msgspec.msgpack.encode(change)))
    assert abs(sizes[0] - sizes[1]) <= 8, "it costs the same, however many there are"


def test_a_whole_list_comes_in_parts() -> None:
    log = filled(2 * PART_MEMBERS + 1)
    log.remove("i0")
    parts = log.answer(MembersQuery())
    assert [(part.base, part.version, part.more) for part in parts] == [
        (0, PART_MEMBERS + 1, True),
        (PART_MEMBERS + 1, log.version, False),
    ]
    follower = Follower()
    for part in parts:
        follower.receive(part)
    assert follower.members == {member.instance_id: member for member in log.all()}
    assert not follower.cursor.is_behind


def test_to_make_a_whole_list_is_little_work_for_each_member() -> None:
    """Thousands want it when a gManager has restarted, and it is made in one turn of the event loop."""
    log = MemberLog(1)
    for number in range(2000):
        log.put(make_member(f"i{number}"))
    assert calls(lambda: log.since(0)) < 200


def test_what_did_not_change_makes_no_version() -> None:
    log = filled(1)
    log.put(make_member("i0"))
    log.remove("stranger")
    assert log.version == 1
    (nothing,) = log.answer(MembersQuery(incarnation=1, version=1))
    assert (nothing.base, nothing.version, nothing.members) == (1, 1, ())


@pytest.mark.parametrize(
    "query", [MembersQuery(), MembersQuery(incarnation=2, version=1), MembersQuery(incarnation=1, version=9)]
)
def test_who_has_none_of_its_versions_gets_all_unless_it_wants_changes_only(query: MembersQuery) -> None:
    log = filled(2)
    (whole,) = log.answer(query)
    assert whole.base == 0 and len(whole.members) == 2
    (sign,) = log.answer(msgspec.structs.replace(query, changes_only=True))
    assert (sign.base, sign.version, sign.members) == (
        (2, 2, ()) if query.incarnation != 1 or query.version else (0, 2, whole.members)
    )


def test_those_that_are_no_more_are_remembered_for_a_while() -> None:
    log = filled(KEPT_GONE + 2)
    for index in range(KEPT_GONE):
        log.remove(f"i{index}")
    old = MembersQuery(incarnation=1, version=KEPT_GONE + 2)
    assert sum(len(part.gone) for part in log.answer(old)) == KEPT_GONE
    log.remove(f"i{KEPT_GONE}")
    (whole,) = log.answer(old)
    assert whole.base == 0 and [member.instance_id for member in whole.members] == [f"i{KEPT_GONE + 1}"]
    log.validate()


def test_what_comes_twice_or_late_changes_nothing() -> None:
    log, follower = filled(2), Follower()
    (whole,) = log.since(0)
    follower.receive(whole)
    log.put(make_member("i0", state="dead"))
    (news,) = log.since(2)
    for message in (news, whole, news):
        follower.receive(message)
    assert follower.members["i0"].state == "dead"


def test_the_lists_of_a_former_version_are_whole_and_always_taken() -> None:
    follower = Follower()
    for name in "ab":
        follower.receive(Members(version=1, members=(make_member(name),)))
        assert set(follower.members) == {name} and not follower.cursor.is_behind


def test_a_whole_list_in_parts_leaves_nobody_who_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(member_versions, "PART_MEMBERS", 1)
    log, follower = filled(3), Follower()
    early = log.since(0)
    for message in early:
        follower.receive(message)
    log.remove("i0")
    for message in log.since(0):
        follower.receive(message)
    assert set(follower.members) == {"i1", "i2"}
    for message in early:
        follower.receive(message)
    assert set(follower.members) == {"i1", "i2"} and not follower.cursor.is_behind, "it came too late"


def test_nobody_is_missing_while_a_whole_list_comes_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(member_versions, "PART_MEMBERS", 1)
    log, follower = filled(3), Follower()
    for message in log.since(0):
        follower.receive(message)
    another = MemberLog(2)
    another.put(make_member("i1"))
    another.put(make_member("i2"))
    first, last = another.since(0)
    follower.receive(first)
    assert set(follower.members) == {"i0", "i1", "i2"}
    another.put(make_member("i3"))
    (news,) = another.since(2)
    follower.receive(news)
    assert set(follower.members) == {"i0", "i1", "i2"} and follower.cursor.is_behind, "it came between the parts"
    follower.receive(last)
    assert set(follower.members) == {"i1", "i2"}, "the list is complete, and it lacks i0"
    follower.receive(news)
    assert set(follower.members) == {"i1", "i2", "i3"}


def test_changes_that_reach_beyond_a_part_complete_a_whole_list(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(member_versions, "PART_MEMBERS", 1)
    log, follower = filled(2), Follower()
    follower.receive(Members(version=1, members=(make_member("former"),)))
    first, _ = log.since(0)
    log.remove("i0")
    log.put(make_member("i2"))
    follower.receive(first)
    monkeypatch.setattr(member_versions, "PART_MEMBERS", 9)
    (rest,) = log.since(1)
    follower.receive(rest)
    assert set(follower.members) == {"i1", "i2"}


def test_changes_since_a_version_of_long_ago_are_the_whole_list(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(member_versions, "KEPT_GONE", 1)
    log, follower = filled(3), Follower()
    for message in log.since(0):
        follower.receive(message)
    log.remove("i0")
    log.remove("i1")
    for message in log.since(3):
        follower.receive(message)
    assert set(follower.members) == {"i2"}


NAMES = st.sampled_from([f"i{index}" for index in range(6)])
STEPS = st.one_of(
    st.tuples(st.just("put"), NAMES, st.integers(0, 3)),
    st.tuples(st.just("remove"), NAMES, st.just(0)),
    st.tuples(st.sampled_from(["send", "lose", "ask", "restart"]), st.just(""), st.just(0)),
)


@settings(max_examples=examples(300))
@given(st.lists(STEPS, max_size=40), st.integers(1, 3), st.integers(1, 3))
def test_whatever_is_lost_who_asks_has_the_list(steps: list[tuple[str, str, int]], part: int, kept: int) -> None:
    """Broadcasts of what changed since the last one, some lost, parts of any size, and a sender that starts anew."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(member_versions, "PART_MEMBERS", part)
        patch.setattr(member_versions, "KEPT_GONE", kept)
        log, follower, sent = MemberLog(1), Follower(), 0
        incarnation = 1
        for what, name, blocks in steps:
            if what == "put":
                log.put(make_member(name, free_blocks=blocks))
            elif what == "remove":
                log.remove(name)
            elif what in ("send", "lose"):
                if log.version > sent:
                    for message in log.since(sent) if what == "send" else ():
                        follower.receive(message)
                sent = log.version
            elif what == "ask":
                for message in log.answer(follower.cursor.query()):
                    follower.receive(message)
                assert follower.members == {member.instance_id: member for member in log.all()}
            else:
                incarnation += 1
                log, sent = MemberLog(incarnation), 0
            log.validate()
        follower.cursor.announced(incarnation, log.version)
        for message in log.answer(follower.cursor.query()) if follower.cursor.is_behind else ():
            follower.receive(message)
        if log.version:
            assert follower.members == {member.instance_id: member for member in log.all()}
