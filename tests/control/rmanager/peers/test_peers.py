"""PeerBook: who else is there, whom there is reason to doubt, and what settles it."""

from __future__ import annotations

import math

import msgspec
import pytest

from distkv.clock import ManualClock
from distkv.control.rmanager.peers.doubts import FIRST_KNOCK_S, LONGEST_KNOCK_S
from distkv.control.rmanager.peers.member_table import GONE
from distkv.control.rmanager.peers.peers import (
    LISTED_DEAD_S,
    NEWLY_HEARD_S,
    SILENT_S,
    SUSPECT_S,
    LostPeer,
    PeerBook,
)
from distkv.control.rmanager.state import RManagerState
from distkv.wire.messages.common import Member
from distkv.wire.messages.member_versions import MemberCursor
from distkv.wire.messages.to_gmanager import MembersQuery
from distkv.wire.messages.to_rmanager import Members, Renew, Renewed, TryMoveKvcache
from distkv.wire.messages.to_worker import Peers
from tests.control.parts import issued, make_member
from tests.control.rmanager.peers.case import ALIVE, knocked, list_, lost, owe, told


def test_a_list_that_lacks_somebody_proves_nothing(state: RManagerState, peers: PeerBook) -> None:
    assert list_(peers, make_member("me", 7), make_member("p"), make_member("q")) == []
    assert set(state.members) == {"p", "q"}
    assert list_(peers, make_member("q", free_blocks=1)) == []
    assert set(state.members) == {"p", "q"} and state.members["q"].free_blocks == 1


def test_where_nothing_is_at_stake_the_dead_and_the_reborn_are_lost_once(state: RManagerState, peers: PeerBook) -> None:
    list_(peers, make_member("p"), make_member("q", 3))
    dead = make_member("p", state="dead")
    assert list_(peers, dead, make_member("q", 4)) == [LostPeer("p", None), LostPeer("q", 4)]
    assert list_(peers, dead, make_member("q", 4)) == []
    assert list_(peers, make_member("q", 3)) == [], "an old incarnation is no news"
    assert set(state.members) == {"q"} and state.members["q"].incarnation == 4
    assert list_(peers, make_member("p", 2)) == []
    assert knocked(state) == [] and peers.next_deadline() == float("inf")


@pytest.mark.parametrize("listed", [make_member("p", state="dead"), make_member("p", state="unreachable")])
def test_a_creditor_that_is_listed_as_gone_is_asked_itself(
    state: RManagerState, peers: PeerBook, listed: Member
) -> None:
    list_(peers, make_member("p"))
    owe(state)
    assert list_(peers, listed) == []
    assert knocked(state) == ["p"] and state.members.num_creditors == 0
    assert state.members["p"].state == "ready", "it stays connected, and its tensors in reach"
    assert list_(peers, listed, now=10.1) == [] and knocked(state) == [], "told again, asked once"
    peers.heard_from("p", ALIVE)
    assert [member.instance_id for member in state.members.creditors(0, 9)] == ["p"]
    assert lost(peers, 99.0) == [] and knocked(state) == []
    assert peers.next_deadline() == float("inf")


@pytest.mark.parametrize(("state_", "after_s"), [("dead", LISTED_DEAD_S), ("unreachable", SILENT_S)])
def test_one_that_does_not_answer_either_is_lost(
    state: RManagerState, peers: PeerBook, state_: str, after_s: float
) -> None:
    list_(peers, make_member("p"))
    owe(state)
    list_(peers, make_member("p", state=state_))
    assert lost(peers, 10.0 + after_s - 0.01) == []
    assert lost(peers, 10.0 + after_s) == [LostPeer("p", None)]
    assert state.members["p"].state == state_ and state.members.num_creditors == 0
    state.commands.clear()
    lost(peers, 60.0)
    assert knocked(state) == ([] if state_ == "dead" else ["p"]), "nobody knocks at the dead"


def test_a_new_incarnation_that_only_a_gmanager_knows_of_waits_for_the_old_one_to_end(
    state: RManagerState, peers: PeerBook
) -> None:
    list_(peers, make_member("p"))
    owe(state)
    assert list_(peers, make_member("p", 2)) == [] and knocked(state) == ["p"]
    assert peers.heard_from("p", ALIVE) == []
    assert state.members["p"].incarnation == 1, "two processes have the name; the one that holds our block is there"
    assert lost(peers, 40.0) == [] and state.members["p"].incarnation == 1
    state.sequences.clear()
    assert lost(peers, 80.0) == [LostPeer("p", 2)] and state.members["p"].incarnation == 2


@pytest.mark.parametrize("how", ["answers itself", "the old one is silent"])
def test_a_new_incarnation_is_believed_by_its_own_answer_or_the_silence_of_the_old(
    state: RManagerState, peers: PeerBook, how: str
) -> None:
    list_(peers, make_member("p"))
    owe(state)
    list_(peers, make_member("p", 2, free_blocks=5))
    if how == "answers itself":
        found = peers.heard_from("p", Renewed(renewal=1, incarnation=2))
    else:
        found = lost(peers, 10.0 + LISTED_DEAD_S)
    assert found == [LostPeer("p", 2)]
    assert (state.members["p"].incarnation, state.members["p"].free_blocks) == (2, 5)
    assert [member.instance_id for member in state.members.creditors(0, 9)] == ["p"]


def test_a_peer_that_says_itself_that_it_restarted_is_another_before_any_list_says_so(
    state: RManagerState, peers: PeerBook
) -> None:
    list_(peers, make_member("p"))
    told(state, peers)
    owe(state)
    assert peers.heard_from("p", Renewed(renewal=1, incarnation=2)) == [LostPeer("p", 2)]
    assert state.members["p"].incarnation == 2 and state.members.num_creditors == 0
    assert told(state, peers) == Peers(members=(), gone=("p",))
    assert list_(peers, make_member("p", 2)) == [] and state.members.num_creditors == 1


def test_the_worker_reaches_the_living_that_have_an_endpoint(state: RManagerState, peers: PeerBook) -> None:
    list_(peers, make_member("p"), make_member("q", state="dead"), make_member("s", data=None))
    assert told(state, peers) == Peers(members=(make_member("p"),))


def test_the_worker_is_told_what_changed_and_nothing_when_nothing_did_that_it_needs(
    state: RManagerState, peers: PeerBook
) -> None:
    """Else it gets the whole list with every change of it, a thousand times for a thousand that join."""
    names = [f"n{number}" for number in range(50)]
    list_(peers, *map(make_member, names))
    first = told(state, peers)
    assert first is not None and sorted(member.instance_id for member in first.members) == sorted(names)
    list_(peers, *map(make_member, [*names, "m"]))
    assert told(state, peers) == Peers(members=(make_member("m"),))
    list_(peers, make_member("m", free_blocks=3), make_member("n1", state="unreachable"))
    assert told(state, peers) is None
    list_(peers, make_member("m", incarnation=2), make_member("n1", state="dead"))
    assert told(state, peers) == Peers(members=(make_member("m", incarnation=2),), gone=("n1",))


def test_a_broken_connection_is_a_loss_after_a_while_unless_it_is_heard(state: RManagerState, peers: PeerBook) -> None:
    clock = ManualClock(10.0)
    list_(peers, make_member("p"), make_member("q"))
    peers.suspect("p", clock.now())
    peers.suspect("q", clock.now())
    peers.suspect("stranger", clock.now())
    assert knocked(state) == ["p", "q"]
    assert state.members.num_creditors == 0
    peers.heard_from("q", ALIVE)
    assert [member.instance_id for member in state.members.creditors(0, 9)] == ["q"]
    clock.advance(SUSPECT_S / 2)
    peers.suspect("p", clock.now())
    assert lost(peers, clock.now()) == []
    clock.advance(SUSPECT_S / 2)
    assert lost(peers, clock.now()) == [LostPeer("p", None)], "counted from the first doubt"
    assert lost(peers, clock.advance(9.0)) == [] and state.suspects == {"p": GONE}
    peers.silent("p", clock.now())
    peers.suspect("p", clock.now())
    assert state.suspects == {"p": GONE}
    peers.heard_from("p", ALIVE)
    assert state.members.num_creditors == 2


def test_one_that_did_not_answer_is_not_asked_and_lost_if_it_stays_silent(
    state: RManagerState, peers: PeerBook
) -> None:
    list_(peers, make_member("p"), make_member("q"))
    for name in "pq":
        peers.silent(name, 10.0)
    assert state.members.num_creditors == 0
    peers.suspect("p", 12.0)
    peers.silent("p", 12.5)
    assert lost(peers, 12.9) == []
    assert lost(peers, 12.0 + SUSPECT_S) == [LostPeer("p", None)], "its connection broke, too"
    assert lost(peers, 10.0 + SILENT_S) == [LostPeer("q", None)]
    peers.heard_from("q", ALIVE)
    assert [member.instance_id for member in state.members.creditors(0, 9)] == ["q"]


def test_memory_of_a_peer_in_doubt_counts_until_it_is_lost(state: RManagerState, peers: PeerBook) -> None:
    """A request is refused for good only when the live instances cannot hold it; a hiccup of one is no reason."""
    list_(peers, make_member("p", lendable_blocks=5), make_member("q", lendable_blocks=3, state="draining"))
    assert state.cluster_blocks() == 16 + 5
    peers.silent("p", 1.0)
    assert state.cluster_blocks() == 16 + 5
    peers.heard_from("p", ALIVE)
    peers.suspect("p", 1.0)
    assert state.cluster_blocks() == 16 + 5
    lost(peers, 1.0 + SUSPECT_S)
    assert state.cluster_blocks() == 16


def test_knocks_come_ever_more_rarely_and_end_with_the_peer(state: RManagerState, peers: PeerBook) -> None:
    list_(peers, make_member("p"), make_member("q"))
    peers.silent("p", 0.0)
    peers.silent("stranger", 0.0)
    assert knocked(state) == ["p"]
    pauses, at = [], 0.0
    while len(pauses) < 9:
        due = peers.next_deadline()
        peers.tick(due)
        if knocked(state):
            pauses.append(due - at)
            at = due
    assert pauses == [min(LONGEST_KNOCK_S, FIRST_KNOCK_S * 2**i) for i in range(9)]
    list_(peers, make_member("p", state="dead"))
    lost(peers, at + 1000.0)
    assert knocked(state) == [] and state.suspects == {} and peers.next_deadline() == float("inf")


def test_one_that_is_forgotten_is_not_knocked_at(state: RManagerState, peers: PeerBook) -> None:
    list_(peers, make_member("p"))
    peers.silent("p", 0.0)
    knocked(state)
    del state.members["p"]
    lost(peers, 9.0)
    assert knocked(state) == [] and issued(state, Renew) == []


def test_it_tells_who_is_there_and_that_it_serves(state: RManagerState, peers: PeerBook) -> None:
    list_(peers, make_member("p"))
    state.take_slot()
    (message,) = peers.members_messages(MembersQuery())
    assert [(member.instance_id, member.free_blocks) for member in message.members] == [("p", 8), ("me", 15)]
    assert peers.located("r").instance_id == "me"
    state.instance_state = "draining"
    located = peers.located("r")
    assert (located.instance_id, located.reason) == ("", "instance me is draining")


def test_who_has_its_list_is_told_what_changed(state: RManagerState, peers: PeerBook) -> None:
    list_(peers, make_member("p"), make_member("q"))
    client = MemberCursor()
    (whole,) = peers.members_messages(client.query())
    assert client.take(whole) and [member.instance_id for member in whole.members] == ["p", "q", "me"]
    list_(peers, make_member("p"), make_member("q", state="draining"))
    (changes,) = peers.members_messages(client.query())
    assert client.take(changes) and [member.instance_id for member in changes.members] == ["q"]
    (nothing,) = peers.members_messages(MembersQuery(changes_only=True))
    assert (nothing.members, nothing.base) == ((), nothing.version), "a sign of life, whatever the asker has"


def test_before_it_is_introduced(state: RManagerState) -> None:
    (message,) = PeerBook(state, lambda _: False).members_messages(MembersQuery())
    assert message.members == ()


# --- a list that comes as changes


def test_changes_are_followed_and_a_gap_is_asked_for(state: RManagerState, peers: PeerBook) -> None:
    assert peers.take(Members(version=3, incarnation=9, members=(make_member("p"), make_member("q"))), 10.0) == []
    dead = Members(version=4, incarnation=9, base=3, members=(make_member("p", state="dead"),))
    assert peers.take(dead, 10.0) == [LostPeer("p", None)]
    assert peers.take(dead, 10.0) == [] and not peers.cursor.is_behind
    assert peers.take(Members(version=5, incarnation=9, base=4, gone=("p", "q")), 10.0) == []
    assert set(state.members) == {"q"}, "only the dead are forgotten on a gManager's word"
    peers.take(Members(version=8, incarnation=9, base=7, members=(make_member("r"),)), 10.0)
    assert peers.cursor.is_behind and "r" not in state.members
    assert peers.cursor.query() == MembersQuery(incarnation=9, version=5)
    peers.take(Members(version=8, incarnation=9, base=5, members=(make_member("r"), make_member("s"))), 10.0)
    assert set(state.members) == {"q", "r", "s"} and not peers.cursor.is_behind


def test_the_dead_that_a_whole_list_in_parts_lacks_are_forgotten(state: RManagerState, peers: PeerBook) -> None:
    dead = [make_member(name, state="dead") for name in "pqr"]
    peers.take(Members(version=3, incarnation=5, members=tuple(dead)), 10.0)
    peers.take(Members(version=1, incarnation=6, members=(dead[0],), more=True, newest=2), 20.0)
    assert set(state.members) == {"p", "q", "r"}, "the rest may name them"
    peers.take(Members(version=2, incarnation=6, base=1, members=(dead[1],)), 20.0)
    assert set(state.members) == {"p", "q"}


def test_after_a_clock_was_set_back_a_smaller_incarnation_is_a_new_life(state: RManagerState, peers: PeerBook) -> None:
    list_(peers, make_member("p", 9), make_member("q", 9), make_member("s", 9))
    list_(peers, make_member("p", 9, state="dead"))
    peers.silent("q", 10.0)
    found = list_(peers, make_member("p", 3), make_member("q", 3), make_member("s", 3))
    assert found == [LostPeer("p", 3), LostPeer("q", 3)]
    assert {name: member.incarnation for name, member in state.members.items()} == {"p": 3, "q": 3, "s": 9}


def test_a_smaller_incarnation_is_a_new_life_where_the_gmanager_that_says_so_told_of_the_former_one(
    state: RManagerState, peers: PeerBook
) -> None:
    """The peer was not doubted when it ended, for nothing lay there: it was never borrowed from again."""
    peers.take(Members(incarnation=5, version=1, members=(make_member("p", 9), make_member("q", 9))), 10.0)
    again = Members(incarnation=5, version=2, base=1, members=(make_member("p", 3),))
    assert peers.take(again, 11.0) == [LostPeer("p", 3)]
    owe(state, "q")
    assert peers.take(Members(incarnation=5, version=3, base=2, members=(make_member("q", 4),)), 12.0) == []
    assert state.members["q"].incarnation == 9 and knocked(state) == ["q"], "something is at stake"
    peers.heard_from("q", Renewed(renewal=1, incarnation=9))
    for version in (1, 2):
        behind = Members(incarnation=4, version=version, base=version - 1, members=(make_member("p", 2),))
        assert peers.take(behind, 30.0) == [], "another gManager never knew the newer life"
    assert {name: member.incarnation for name, member in state.members.items()} == {"p": 3, "q": 9}


def test_a_debtor_that_is_listed_as_gone_keeps_its_tensor_link(state: RManagerState, peers: PeerBook) -> None:
    """Else its creditor's worker closes the link on a gManager's word, and the debtor misses partials."""
    reachable = make_member("p")
    list_(peers, reachable)
    wanted = TryMoveKvcache(span_id="s", request_id="r", debtor_id="p", debtor_incarnation=1, num_blocks=1, ttl_s=4.0)
    state.loans.try_grant(b"p", wanted, 4, 10.0)
    assert list_(peers, make_member("p", state="dead")) == []
    assert knocked(state) == ["p"] and told(state, peers) == Peers(members=(reachable,))
    assert peers.heard_from("p", ALIVE) == [] and not state.suspects
    assert told(state, peers) is None


@pytest.mark.parametrize("state_told", ["dead", "unreachable", "starting"])
def test_another_gmanager_is_not_believed_at_once_that_somebody_is_not_there(
    state: RManagerState, peers: PeerBook, state_told: str
) -> None:
    """It only heard the instances join; what they lend counts on, so no request is refused that there is memory for."""
    ready = make_member("p", 1, lendable_blocks=9)
    told_of = msgspec.structs.replace(ready, state=state_told)
    peers.take(Members(version=1, incarnation=5, members=(ready,)), 10.0)
    assert state.cluster_blocks() == state.settings.num_blocks + 9

    assert peers.take(Members(version=1, incarnation=6, members=(told_of,)), 20.0) == []
    assert state.members["p"] == ready and state.cluster_blocks() == state.settings.num_blocks + 9
    assert knocked(state) == [], "nothing is at stake there"
    assert peers.next_deadline() == 20.0 + NEWLY_HEARD_S
    assert peers.tick(20.0 + NEWLY_HEARD_S - 0.1) == []
    gone = peers.tick(20.0 + NEWLY_HEARD_S)
    assert gone == ([LostPeer("p", None)] if state_told == "dead" else [])
    assert state.members["p"].state == state_told, "it stays with its word"


def test_what_another_gmanager_takes_back_in_time_never_counted(state: RManagerState, peers: PeerBook) -> None:
    ready = make_member("p", 1)
    peers.take(Members(version=1, incarnation=5, members=(ready,)), 10.0)
    peers.take(Members(version=1, incarnation=6, members=(msgspec.structs.replace(ready, state="dead"),)), 20.0)
    peers.take(Members(version=2, incarnation=6, base=1, members=(ready,)), 21.0)
    assert peers.next_deadline() == float("inf") and peers.tick(60.0) == [] and state.members["p"] == ready


def test_all_are_known_once_a_whole_list_has_come(state: RManagerState, peers: PeerBook) -> None:
    members = state.members
    peers.take(Members(version=0, base=0, incarnation=6, members=(make_member("me", 7),), more=True, newest=2), 10.0)
    assert members.listed_from == math.inf, "the greeting of a large cluster names only who joined"
    peers.take(Members(version=2, base=0, incarnation=6, members=(make_member("p"),), newest=2), 10.0)
    assert members.listed_from == 10.0 and set(members) >= {"p"}


def test_others_may_join_yet_where_the_first_did_a_moment_ago(state: RManagerState, peers: PeerBook) -> None:
    peers.take(Members(version=1, incarnation=6, members=(make_member("p"),), settles_in_s=4.0), 10.0)
    peers.take(Members(version=2, incarnation=6, base=1, members=(make_member("q"),), settles_in_s=3.0), 11.0)
    assert state.members.listed_from == 14.0
    peers.take(Members(version=3, incarnation=6, base=2, members=(make_member("r"),)), 12.0)
    assert state.members.listed_from == 12.0, "as many as are expected"
    peers.take(Members(version=1, incarnation=9, members=(make_member("p"),), settles_in_s=10.0), 50.0)
    assert state.members.listed_from == 12.0, "who there is, the gManager before has said"
