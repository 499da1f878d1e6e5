"""PeerBook: peers that no list has any more are asked themselves."""

from __future__ import annotations

import pytest

from distkv.control.rmanager.peers.absent import ASK_EVERY_S, MOST_ASKED
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
from distkv.wire.messages.to_gmanager import MembersQuery
from distkv.wire.messages.to_rmanager import Members
from distkv.wire.messages.to_worker import Peers
from tests.control.parts import make_member
from tests.control.rmanager.peers.case import ALIVE, knocked, lost, owe, told


def followed(peers: PeerBook, *members: Member, version: int = 1, incarnation: int = 5, now: float = 10.0) -> None:
    """A gManager sends its whole list."""
    assert peers.take(Members(version=version, incarnation=incarnation, members=members), now) == []


def forgotten(state: RManagerState, peers: PeerBook, name: str) -> bool:
    """Whether the worker is told that it is gone, and nothing of it is kept."""
    is_told = told(state, peers) == Peers(members=(), gone=(name,))
    kept = (state.members, state.suspects, peers._reached, peers._told, peers._listed, peers._postponed, peers._absent)
    return is_told and not any(name in one for one in kept)


@pytest.mark.parametrize("how", ["named as gone", "not named by a whole list"])
@pytest.mark.parametrize("is_at_stake", [False, True])
def test_one_that_is_in_no_list_any_more_is_asked_itself_and_forgotten_when_it_is_silent(
    state: RManagerState, peers: PeerBook, how: str, is_at_stake: bool
) -> None:
    """It ended while this instance did not hear the gManager for so long that its end is in no list: it stayed ready
    for ever, with the memory that it had lent."""
    followed(peers, make_member("p"), make_member("q"))
    told(state, peers)
    if is_at_stake:
        owe(state)
    if how == "named as gone":
        assert peers.take(Members(version=2, incarnation=5, base=1, gone=("p",)), 400.0) == []
    else:
        followed(peers, make_member("q"), version=2, now=400.0)
    assert state.members["p"].state == "ready" and peers.next_deadline() <= 400.0
    assert lost(peers, 400.0) == [] and knocked(state) == ["p"] and "p" in state.suspects
    assert lost(peers, 400.0 + LISTED_DEAD_S) == [LostPeer("p", None)]
    assert forgotten(state, peers, "p") and set(state.members) == {"q"}
    (whole,) = peers.members_messages(MembersQuery())
    assert [member.instance_id for member in whole.members] == ["q", "me"]
    assert lost(peers, 999.0) == [] and knocked(state) == [] and peers.next_deadline() == float("inf")


def test_one_that_answers_stays_though_it_is_in_no_list_and_is_forgotten_when_it_ends(
    state: RManagerState, peers: PeerBook
) -> None:
    """A gManager may be cut off from it, or another one may know it."""
    followed(peers, make_member("p"))
    peers.take(Members(version=2, incarnation=5, base=1, gone=("p",)), 400.0)
    lost(peers, 400.0)
    peers.heard_from("p", ALIVE)
    assert lost(peers, 500.0) == [] and state.members.num_creditors == 1 and not state.suspects
    told(state, peers)
    peers.suspect("p", 600.0)
    assert lost(peers, 600.0 + SUSPECT_S) == [LostPeer("p", None)]
    assert forgotten(state, peers, "p") and not state.members


def test_one_that_is_asked_seldom_is_asked_at_once_when_no_list_has_it(state: RManagerState, peers: PeerBook) -> None:
    """It was listed as restarted and answered as what it was: pauses between pings have become long."""
    followed(peers, make_member("p"))
    owe(state)
    peers.take(Members(version=2, incarnation=5, base=1, members=(make_member("p", 2),)), 20.0)
    for now in range(20, 60):
        assert lost(peers, float(now)) == []
        if knocked(state):
            peers.heard_from("p", ALIVE)
    peers.take(Members(version=3, incarnation=5, base=2, gone=("p",)), 60.0)
    assert lost(peers, 60.0) == [] and knocked(state) == ["p"]
    peers.heard_from("p", ALIVE)
    assert lost(peers, 60.0 + LISTED_DEAD_S) == [] and "p" in state.members


def test_a_gmanager_that_restarted_has_time_to_hear_of_all_before_those_it_lacks_are_asked(
    state: RManagerState, peers: PeerBook
) -> None:
    followed(peers, *map(make_member, "pqr"))
    followed(peers, make_member("p"), incarnation=6, now=20.0)
    assert state.members.num_creditors == 3 and peers.next_deadline() == 20.0 + NEWLY_HEARD_S
    assert lost(peers, 20.0 + NEWLY_HEARD_S - 0.1) == [] and knocked(state) == []
    peers.take(Members(version=2, incarnation=6, base=1, members=(make_member("q"),)), 22.0)
    assert lost(peers, 20.0 + NEWLY_HEARD_S) == [] and knocked(state) == ["r"]
    peers.take(Members(version=3, incarnation=6, base=2, members=(make_member("r"),)), 25.5)
    peers.heard_from("r", ALIVE)
    assert lost(peers, 99.0) == [] and set(state.members) == {"p", "q", "r"} and not state.suspects


def test_of_thousands_that_a_list_lacks_few_are_asked_at_once(state: RManagerState, peers: PeerBook) -> None:
    """Each costs a connection, from every instance."""
    followed(peers, *(make_member(f"p{number:04}") for number in range(2000)))
    followed(peers, incarnation=6, now=20.0)
    asked = 0
    for second in range(4):
        lost(peers, 20.0 + NEWLY_HEARD_S + second * ASK_EVERY_S)
        fresh = {name for name in knocked(state) if int(name[1:]) >= asked}
        assert len(fresh) == MOST_ASKED
        asked += MOST_ASKED
    assert len(state.members) == 2000 - 2 * MOST_ASKED, "lost after two seconds"


def test_one_whose_end_was_listed_while_it_held_something_is_forgotten_with_it(
    state: RManagerState, peers: PeerBook
) -> None:
    followed(peers, make_member("p"))
    told(state, peers)
    owe(state)
    assert list_gone(peers, 11.0) == []
    assert lost(peers, 11.0 + LISTED_DEAD_S) == [LostPeer("p", None)]
    assert forgotten(state, peers, "p")


def test_one_that_was_lost_before_no_list_had_it_any_more_is_forgotten(state: RManagerState, peers: PeerBook) -> None:
    followed(peers, make_member("p"))
    told(state, peers)
    peers.silent("p", 20.0)
    assert lost(peers, 20.0 + SILENT_S) == [LostPeer("p", None)] and state.suspects == {"p": GONE}
    followed(peers, version=2, now=400.0)
    assert lost(peers, 400.0) == [LostPeer("p", None)], "so its connection is closed"
    assert forgotten(state, peers, "p")


def list_gone(peers: PeerBook, now: float) -> list[LostPeer]:
    """A peer is listed as dead, and then not any more, in one message each."""
    found = peers.take(Members(version=2, incarnation=5, base=1, members=(make_member("p", state="dead"),)), now)
    return found + peers.take(Members(version=3, incarnation=5, base=2, gone=("p",)), now)
