"""What one rManager hears, and what it makes of it."""

from __future__ import annotations

from distkv.control.commands import TellPeer, TellWorker
from distkv.control.rmanager.peers.peers import (
    LostPeer,
    PeerBook,
)
from distkv.control.rmanager.state import RManagerState
from distkv.wire.messages.common import Member
from distkv.wire.messages.to_rmanager import Members, Renew, Renewed
from distkv.wire.messages.to_worker import Peers
from tests.control.parts import add_sequence, lend

ALIVE = Renewed(renewal=1, incarnation=1)


def list_(peers: PeerBook, *members: Member, now: float = 10.0) -> list[LostPeer]:
    return peers.take(Members(version=1, members=members), now)


def owe(state: RManagerState, creditor: str = "p") -> None:
    """There is something at stake: a block of a request lies at this peer."""
    lend(add_sequence(state), creditor, 1, valid_until=1e9)


def knocked(state: RManagerState) -> list[str]:
    """Peers that were knocked at since the last call."""
    knocks = [one for one in state.commands if isinstance(one, TellPeer) and isinstance(one.body, Renew)]
    assert all(isinstance(one.body, Renew) and (one.body.spans, one.body.ttl_s) == ((), 0.0) for one in knocks)
    state.commands.clear()
    return [one.instance_id for one in knocks]


def told(state: RManagerState, peers: PeerBook) -> Peers | None:
    """What the worker is told now."""
    state.commands.clear()
    peers.tell_worker()
    peers.validate()
    bodies = [one.body for one in state.commands if isinstance(one, TellWorker)]
    assert len(bodies) <= 1 and all(isinstance(body, Peers) for body in bodies)
    return next((body for body in bodies if isinstance(body, Peers)), None)


def lost(peers: PeerBook, now: float) -> list[LostPeer]:
    return peers.tick(now)
