"""PeerBook: who else is there, and whom there is reason to doubt."""

from __future__ import annotations

import pytest

from distkv.clock import ManualClock
from distkv.control.rmanager.peers import SILENT_S, SUSPECT_S, LostPeer, PeerBook
from distkv.control.rmanager.state import GONE, RManagerState
from distkv.wire.messages.to_rmanager import Renew
from tests.control.parts import issued, make_member, make_state


@pytest.fixture
def state() -> RManagerState:
    return make_state(peers=())


@pytest.fixture
def peers(state: RManagerState) -> PeerBook:
    peers = PeerBook(state)
    peers.own = make_member("me", 7)
    return peers


def test_a_list_that_lacks_somebody_proves_nothing(state: RManagerState, peers: PeerBook) -> None:
    assert peers.update((make_member("me", 7), make_member("p"), make_member("q"))) == []
    assert set(state.members) == {"p", "q"}
    assert peers.update((make_member("q", free_blocks=1),)) == []
    assert set(state.members) == {"p", "q"} and state.members["q"].free_blocks == 1


def test_the_dead_and_the_reborn_are_lost_once(state: RManagerState, peers: PeerBook) -> None:
    peers.update((make_member("p"), make_member("q", 3)))
    dead = make_member("p", state="dead")
    assert peers.update((dead, make_member("q", 4))) == [LostPeer("p", None), LostPeer("q", 4)]
    assert peers.update((dead, make_member("q", 4))) == []
    assert peers.update((make_member("q", 3),)) == [], "an old incarnation is no news"
    assert set(state.members) == {"q"} and state.members["q"].incarnation == 4
    assert peers.update((make_member("p", 2),)) == []


def test_the_worker_reaches_the_living_that_have_an_endpoint(state: RManagerState, peers: PeerBook) -> None:
    peers.update((make_member("p"), make_member("q", state="dead"), make_member("s", data=None)))
    assert [member.instance_id for member in peers.reachable()] == ["p"]


def test_a_broken_connection_is_a_loss_after_a_while_unless_it_is_heard(state: RManagerState, peers: PeerBook) -> None:
    clock = ManualClock(10.0)
    peers.update((make_member("p"), make_member("q")))
    peers.suspect("p", clock.now())
    peers.suspect("q", clock.now())
    peers.suspect("stranger", clock.now())
    assert state.possible_creditors() == []
    peers.heard_from("q")
    assert [member.instance_id for member in state.possible_creditors()] == ["q"]
    clock.advance(SUSPECT_S / 2)
    peers.suspect("p", clock.now())
    assert peers.given_up(clock.now()) == []
    clock.advance(SUSPECT_S / 2)
    assert peers.given_up(clock.now()) == ["p"], "counted from the first doubt"
    assert peers.given_up(clock.advance(9.0)) == [] and state.suspects == {"p": GONE}
    peers.silent("p", clock.now())
    peers.suspect("p", clock.now())
    assert state.suspects == {"p": GONE}
    peers.heard_from("p")
    assert len(state.possible_creditors()) == 2


def test_one_that_did_not_answer_is_not_asked_and_lost_if_it_stays_silent(
    state: RManagerState, peers: PeerBook
) -> None:
    peers.update((make_member("p"), make_member("q")))
    for name in "pq":
        peers.silent(name, 10.0)
    assert state.possible_creditors() == []
    peers.suspect("p", 12.0)
    peers.silent("p", 12.5)
    assert peers.given_up(12.9) == []
    assert peers.given_up(12.0 + SUSPECT_S) == ["p"], "its connection broke, too"
    assert peers.given_up(10.0 + SILENT_S) == ["q"]
    peers.heard_from("q")
    assert [member.instance_id for member in state.possible_creditors()] == ["q"]


def test_memory_of_a_peer_in_doubt_counts_until_it_is_lost(state: RManagerState, peers: PeerBook) -> None:
    """A request is refused for good only when the live instances cannot hold it; a hiccup of one is no reason."""
    peers.update((make_member("p", lendable_blocks=5), make_member("q", lendable_blocks=3, state="draining")))
    assert state.cluster_blocks() == 16 + 5
    peers.silent("p", 1.0)
    assert state.cluster_blocks() == 16 + 5
    peers.heard_from("p")
    peers.suspect("p", 1.0)
    assert state.cluster_blocks() == 16 + 5
    peers.given_up(1.0 + SUSPECT_S)
    assert state.cluster_blocks() == 16


def test_pings(state: RManagerState, peers: PeerBook) -> None:
    peers.update((make_member("p"), make_member("q")))
    peers.silent("p", 1.0)
    peers.silent("stranger", 1.0)
    peers.ping()
    assert [(command.instance_id, command.body.spans) for command in state.commands] == [("p", ())]  # type: ignore[union-attr]
    assert issued(state, Renew)[0].ttl_s == 0.0


def test_it_tells_who_is_there_and_that_it_serves(state: RManagerState, peers: PeerBook) -> None:
    peers.update((make_member("p"),))
    state.take_slot()
    message = peers.members_message()
    assert [(member.instance_id, member.free_blocks) for member in message.members] == [("p", 8), ("me", 15)]
    assert peers.located("r").instance_id == "me"
    state.instance_state = "draining"
    located = peers.located("r")
    assert (located.instance_id, located.reason) == ("", "instance me is draining")


def test_before_it_is_introduced(state: RManagerState) -> None:
    assert PeerBook(state).members_message().members == ()
