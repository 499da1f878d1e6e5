"""GManager: who is in the cluster, and who may say so."""

from __future__ import annotations

import msgspec
import pytest

from distkv import events
from distkv.control.cluster.gmanager import FORGET_DEAD_S
from distkv.control.cluster.member_feed import COALESCE_S
from distkv.wire.messages import to_gmanager as tg
from distkv.wire.messages.to_rmanager import HeartbeatAck, JoinRefused, Members
from tests.control.cluster.managed import Managed
from tests.control.parts import make_member


def test_only_its_own_connection_speaks_for_an_instance(managed: Managed) -> None:
    managed.join("a")
    managed.join("b")
    managed.beat("a", lendable_blocks=7)
    before = managed.gm.members()
    forged = [
        tg.Leave(instance_id="a", incarnation=1),
        tg.Join(member=make_member("a", pid=666), compat="model"),
        tg.Heartbeat(
            instance_id="a", incarnation=1, seq=9, base=0, full=True, total_blocks=16, free_blocks=0, lendable_blocks=0
        ),
        tg.BorrowQuery(instance_id="b", borrow_id="x", num_blocks=1, refusals=(tg.Refusal("a", 0),)),
    ]
    for message in forged:
        managed.hear("stranger", message)
        named = "b" if isinstance(message, tg.BorrowQuery) else "a"
        expected = events.ClaimRefused(instance=named, message=type(message).__name__)
        assert managed.events(events.ClaimRefused) == [expected]
        assert managed.answers(Members) == []
    assert managed.gm.members() == before
    assert managed.candidates("b") == [("a", 7)]
    managed.beat("a", lendable_blocks=5)
    assert managed.events(events.ClaimRefused) == [] and managed.candidates("b") == [("a", 5)]


def test_a_new_instance_is_sent_to_everyone_once(managed: Managed) -> None:
    managed.join("a")
    assert [member.instance_id for member in managed.answers(Members, "a")[0].members] == ["a"]
    managed.join("b")
    whole, news = managed.answers(Members, "b")
    assert [member.instance_id for member in whole.members] == ["a", "b"] and whole.base == 0
    assert managed.answers(Members, "a") == [news], "who has the list gets what changed"
    assert [member.instance_id for member in news.members] == ["b"] and (news.base, news.version) == (1, 2)
    assert managed.events(events.Joined) == [events.Joined(instance="b", pid=0, blocks=16)]


def test_every_join_is_answered(managed: Managed) -> None:
    managed.join("a")
    managed.join("b")
    managed.join("a", free_blocks=2, lendable_blocks=8)
    assert len(managed.answers(Members, "a")) == 1, "also one that changes nothing; what is free changes all the time"
    assert managed.answers(Members, "b") == []
    managed.join("a", state="draining")
    assert [message.base for message in managed.answers(Members, "a")] == [0, 2]
    assert [message.base for message in managed.answers(Members, "b")] == [2]


def test_one_cluster_serves_one_model(managed: Managed) -> None:
    managed.join("a")
    managed.join("b", compat="another")
    (refused,) = managed.answers(JoinRefused, "b")
    assert "instances a serve another model" in refused.reason and "one cluster serves one" in refused.reason
    assert managed.states() == {"a": "ready"}
    managed.join("c", compat="", state="starting")
    assert managed.states() == {"a": "ready", "c": "starting"}
    managed.tick(4.0)
    managed.join("b", compat="another")
    assert managed.states()["b"] == "ready", "the dead do not count"


def test_what_one_serves_counts_from_when_it_says_so_whatever_else_it_said_before(managed: Managed) -> None:
    managed.join("a", compat="", state="starting")
    managed.join("a", compat="model", state="starting")
    managed.join("b", compat="another")
    (refused,) = managed.answers(JoinRefused, "b")
    assert "instances a serve another model" in refused.reason


def test_a_refusal_says_what_differs(managed: Managed) -> None:
    serves = "model qwen3/1f2e3d4c, weights 00aa11bb, dtype bfloat16, KV dtype bfloat16, block size 16, protocol 2"
    managed.join("a", serves=serves)
    other = serves.replace("00aa11bb", "99ff88ee").replace(", dtype bfloat16", ", dtype float32")
    managed.join("b", compat="another", serves=other)
    (refused,) = managed.answers(JoinRefused, "b")
    assert refused.reason == (
        "instances a serve weights 00aa11bb (not 99ff88ee), dtype bfloat16 (not float32); one cluster serves one"
    )
    managed.join("b", compat="another", serves="something, else")
    (refused,) = managed.answers(JoinRefused, "b")
    assert "serve another model, dtype or block layout than b" in refused.reason


def test_a_reason_fits_its_message_however_many_instances_it_is_about(managed: Managed) -> None:
    names = [f"{index:03}".ljust(128, "x") for index in range(50)]
    for name in names:
        managed.join(name)
    managed.join("b", compat="another")
    (refused,) = managed.answers(JoinRefused, "b")
    assert f"instances {', '.join(names[:8])} and 42 more serve" in refused.reason
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(refused), type=JoinRefused) == refused


def test_a_new_incarnation_replaces_the_old_one_and_is_not_replaced_by_it(managed: Managed) -> None:
    managed.join("a", incarnation=1, pid=10)
    managed.beat("a", debtors=(tg.Debtor("b", 3),))
    managed.join("a", incarnation=2, pid=11)
    assert managed.events(events.Replaced) == [events.Replaced(instance="a", old_pid=10, new_pid=11)]
    assert managed.gm.ledger.debts() == {}, "what the old incarnation lent is gone"
    managed.join("a", incarnation=1, pid=10)
    (refused,) = managed.answers(JoinRefused)
    assert "a newer process serves as a already (pid 11)" in refused.reason
    managed.beat("a", incarnation=1)
    (ack,) = managed.answers(HeartbeatAck)
    assert ack.want_join, "one that was replaced joins again, and learns that its name is taken"


def test_a_newer_process_gets_the_name_of_one_that_has_fallen_silent(managed: Managed) -> None:
    managed.join("a", pid=10)
    managed.beat("a")
    newer = tg.Join(member=make_member("a", incarnation=2, pid=11), compat="model")
    assert managed.hear("newer", newer) == []
    managed.tick(1.0)
    assert managed.hear("newer", newer) == [], "it may still be heard"
    managed.tick(1.0)
    managed.hear("newer", newer)
    assert managed.events(events.Replaced) == [events.Replaced(instance="a", old_pid=10, new_pid=11)]
    assert managed.gm.ledger.entries["a"].route == b"newer"


def test_a_newer_process_is_refused_while_the_older_one_is_heard(managed: Managed) -> None:
    managed.join("a", pid=10)
    newer = tg.Join(member=make_member("a", incarnation=2, pid=11), compat="model")
    assert managed.hear("newer", newer) == []
    managed.tick(0.5)
    managed.beat("a")
    managed.hear("newer", newer)
    (refused,) = managed.answers(JoinRefused, "newer")
    assert "another process serves as a (pid 10), and it lives" in refused.reason
    managed.hear("newest", tg.Join(member=make_member("a", incarnation=3, pid=12), compat="model"))
    assert managed.answers(JoinRefused) == [], "each of them has its own chance"


def test_a_name_that_cannot_be_printed_does_not_join(managed: Managed) -> None:
    managed.hear("a", tg.Join(member=make_member("a\x1b[2J"), compat="model"))
    (refused,) = managed.answers(JoinRefused, "a")
    assert refused.reason == r"an instance's name has printable characters only, got 'a\x1b[2J'"


def test_who_is_unknown_or_in_a_new_incarnation_must_join(managed: Managed) -> None:
    managed.beat("a")
    assert managed.answers(HeartbeatAck) == [HeartbeatAck(seq=1, want_join=True, incarnation=1)]
    managed.join("a")
    managed.beat("a", incarnation=2)
    assert managed.answers(HeartbeatAck) == [HeartbeatAck(seq=2, want_join=True, incarnation=1, version=1)]


def test_a_delta_that_builds_on_nothing_is_wanted_in_full(managed: Managed) -> None:
    managed.join("a")
    managed.beat("a", full=False)
    assert managed.answers(HeartbeatAck) == [HeartbeatAck(seq=1, want_full=True, incarnation=1, version=1)]
    managed.beat("a", full=True)
    assert managed.answers(HeartbeatAck) == [HeartbeatAck(seq=2, incarnation=1, version=1)]


def test_silence_makes_an_instance_unreachable_then_dead_then_forgotten(managed: Managed) -> None:
    managed.join("a")
    managed.join("b")
    entry = tg.RequestPlacementEntry(req_id="r", inst_id="a", num_blocks=2, local=True)
    managed.beat("a", entries=(entry,), debtors=(tg.Debtor("b", 3),))
    managed.tick(1.4)
    managed.beat("b")
    assert managed.tick(0.1) != [] and managed.states() == {"a": "unreachable", "b": "ready"}
    assert managed.events(events.InstanceStateChanged) == [
        events.InstanceStateChanged(instance="a", state="unreachable")
    ]
    assert len(managed.answers(Members, "b")) == 1
    assert managed.tick(0.0) == [], "sent once"
    assert managed.gm.ledger.debts() and managed.gm.ledger.placement()
    managed.tick(2.0)
    managed.beat("b")
    managed.tick(0.5)
    assert managed.states() == {"a": "dead", "b": "ready"}
    assert managed.gm.ledger.debts() == {} and managed.gm.ledger.placement() == {}
    assert len(managed.answers(Members, "b")) == 1
    assert managed.answers(Members, "a") == [], "nothing is sent to a dead one's route"
    managed.beat("a", full=False)
    assert managed.states()["a"] == "ready"
    (ack,) = managed.answers(HeartbeatAck)
    assert (ack.seq, ack.want_full) == (2, True)
    managed.tick(4.0 + FORGET_DEAD_S)
    assert managed.states() == {} and managed.gm.next_deadline() == float("inf")


def test_one_that_leaves_is_dead_at_once_but_only_in_this_incarnation(managed: Managed) -> None:
    managed.join("a")
    managed.join("b")
    managed.hear("a", tg.Leave(instance_id="a", incarnation=9))
    managed.hear("x", tg.Leave(instance_id="x", incarnation=1))
    assert managed.states()["a"] == "ready"
    managed.hear("a", tg.Leave(instance_id="a", incarnation=1))
    assert managed.states() == {"a": "dead", "b": "ready"}
    (told,) = managed.answers(Members, "b")
    assert [(one.instance_id, one.left) for one in told.members] == [("a", True)] and managed.events(events.Left)
    managed.join("a", incarnation=2)
    assert managed.states() == {"a": "ready", "b": "ready"}
    (told,) = managed.answers(Members, "b")
    assert [(one.instance_id, one.left) for one in told.members] == [("a", False)]


def test_of_very_many_dead_the_oldest_are_forgotten_once_others_know_that_they_are(
    managed: Managed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As those that start over and over, and end, under ever new names."""
    monkeypatch.setattr("distkv.control.cluster.silence.MOST_DEAD", 3)
    managed.join("a")
    states, gone = dict[str, str](), list[str]()

    def follow() -> None:
        for members in managed.answers(Members, "a"):
            assert all(states[name] == "dead" for name in members.gone)
            states.update({member.instance_id: member.state for member in members.members})
            gone.extend(members.gone)

    for number in range(40):
        name = f"b{number:02}"
        managed.beat("a")
        managed.join(name)
        follow()
        managed.hear(name, tg.Leave(instance_id=name, incarnation=1))
        follow()
        managed.tick(COALESCE_S)
        follow()
    assert managed.states() == {"a": "ready"} | dict.fromkeys(("b37", "b38", "b39"), "dead")
    managed.tick(COALESCE_S)
    follow()
    assert gone == [f"b{number:02}" for number in range(37)]
    managed.join("b39", incarnation=2)
    assert managed.states() == {"a": "ready", "b39": "ready"} | dict.fromkeys(("b37", "b38"), "dead")


@pytest.mark.parametrize("state", ["unreachable", "dead"])
def test_what_only_others_can_find_no_instance_says_of_itself(managed: Managed, state: str) -> None:
    managed.join("a")
    managed.beat("a")
    for name in "ab":
        managed.join(name, state=state)
        (refused,) = managed.answers(JoinRefused, name)
        assert refused.reason == f"{name} says that it is {state}, which only others can find"
    assert managed.states() == {"a": "ready"}
    with pytest.raises(msgspec.ValidationError, match="Invalid enum value"):
        msgspec.msgpack.decode(
            msgspec.msgpack.encode(
                {"type": "Heartbeat", "instance_id": "a", "incarnation": 1, "seq": 9, "base": 0, "full": True}
                | {"state": state}
            ),
            type=tg.Heartbeat,
        )


def test_who_serves_says_what_it_serves(managed: Managed) -> None:
    managed.join("a")
    for state in ("ready", "draining"):
        managed.join("b", compat="", state=state)
        (refused,) = managed.answers(JoinRefused, "b")
        assert refused.reason == f"b is {state} and does not say what it serves"
    managed.join("b", compat="", state="starting")
    assert managed.states() == {"a": "ready", "b": "starting"} and managed.candidates("a") == []


def test_two_live_instances_have_two_addresses(managed: Managed) -> None:
    managed.join("a")
    there = msgspec.structs.replace(make_member("b"), address="sim://a")
    managed.hear("b", tg.Join(member=there, compat="model"))
    (refused,) = managed.answers(JoinRefused, "b")
    assert refused.reason == "sim://a is the address of a, which lives" and managed.states() == {"a": "ready"}
    managed.join("a")
    assert managed.answers(Members, "a"), "its own again is no other's"
    managed.tick(4.0)
    managed.hear("b", tg.Join(member=there, compat="model"))
    assert managed.states() == {"a": "dead", "b": "ready"}, "the dead have none"


def test_versions_grow_with_every_broadcast(managed: Managed) -> None:
    versions = []
    for name in "abc":
        managed.join(name)
        versions.append(managed.answers(Members, name)[0].version)
    assert versions == [1, 2, 3]
    managed.hear("client", tg.MembersQuery())
    assert managed.answers(Members, "client")[0].version == 3
    managed.hear("client", tg.MembersQuery(incarnation=1, version=2))
    (changes,) = managed.answers(Members, "client")
    assert (changes.base, [member.instance_id for member in changes.members]) == (2, ["c"])
    managed.hear("client", tg.MembersQuery(incarnation=2, version=2))
    assert managed.answers(Members, "client")[0].base == 0, "versions of another gManager say nothing"


def test_members_show_what_was_free_when_they_changed(managed: Managed) -> None:
    managed.join("a", free_blocks=8)
    assert managed.gm.members()[0].free_blocks == 8
    managed.beat("a", free_blocks=3)
    managed.tick(0.1)
    assert managed.answers(Members) == [] and managed.gm.members()[0].free_blocks == 8
    managed.beat("a", free_blocks=3, state="draining")
    assert managed.gm.members()[0].free_blocks == 3


def test_member_is_what_joined() -> None:
    managed = Managed()
    managed.join("a")
    assert managed.gm.members() == [make_member("a", total_blocks=16)]


def test_one_that_is_refused_after_loading_is_no_member_any_more(managed: Managed) -> None:
    managed.join("a")
    managed.join("b", compat="", state="starting")
    assert managed.states() == {"a": "ready", "b": "starting"}
    managed.join("b", compat="another")
    assert managed.answers(JoinRefused, "b") and managed.states() == {"a": "ready"}


def join_by(managed: Managed, route: str, incarnation: int, pid: int = 0) -> None:
    managed.hear(route, tg.Join(member=make_member("a", incarnation=incarnation, pid=pid), compat="model"))


@pytest.mark.parametrize("incarnation", [1, 9], ids=["clock set back", "newer"])
def test_one_whose_name_belongs_to_a_silent_process_gets_it_whatever_its_clock(
    managed: Managed, incarnation: int
) -> None:
    managed.join("a", incarnation=5, pid=10)
    managed.beat("a", incarnation=5)
    managed.tick(1.6)
    join_by(managed, "next", incarnation, pid=11)
    assert managed.answers(JoinRefused) == []
    assert managed.gm.ledger.entries["a"].member.pid == 11 and managed.states() == {"a": "ready"}


@pytest.mark.parametrize("incarnation", [1, 9])
def test_one_that_was_replaced_and_comes_back_learns_that_its_name_is_taken(managed: Managed, incarnation: int) -> None:
    """A process that was stopped for long, and the one that was started in its place."""
    managed.join("a", incarnation=5, pid=10)
    managed.tick(5.0)
    join_by(managed, "next", incarnation, pid=11)
    managed.hear("next", tg.Heartbeat(instance_id="a", incarnation=incarnation, seq=1, base=0, full=True))
    managed.beat("a", incarnation=5)
    (ack,) = managed.answers(HeartbeatAck, "a")
    assert ack.want_join
    join_by(managed, "a", 5, pid=10)
    assert managed.answers(JoinRefused) == [], "the other one may be silent"
    managed.tick(0.5)
    managed.hear("next", tg.Heartbeat(instance_id="a", incarnation=incarnation, seq=2, base=1, full=False))
    join_by(managed, "a", 5, pid=10)
    (refused,) = managed.answers(JoinRefused, "a")
    assert refused.is_taken and "another process serves as a (pid 11), and it lives" in refused.reason


def test_several_instances_may_join_by_one_route(managed: Managed) -> None:
    for name in "ab":
        managed.hear("shared", tg.Join(member=make_member(name), compat="model"))
        beat = tg.Heartbeat(instance_id=name, incarnation=1, seq=1, base=0, full=True, lendable_blocks=5)
        managed.hear("shared", beat)
        assert managed.events(events.ClaimRefused) == []
    managed.hear("a", tg.Leave(instance_id="a", incarnation=1))
    assert managed.events(events.ClaimRefused) and managed.states() == {"a": "ready", "b": "ready"}
