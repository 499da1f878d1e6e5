"""What control tells an actor to do, and the few events that are not messages.

Inbound messages are events and outbound messages are commands, so all that is added here is where a message came from
and where it goes.
"""

from __future__ import annotations

from dataclasses import dataclass

from distkv.events import ClusterEvent
from distkv.wire.messages.envelope import GManagerAnswer, PeerAnswer, PeerRequest, ToClient, ToGManager, ToWorker
from distkv.wire.messages.from_worker import Checksummed, Linked, Pulled, Revoked, StepResult
from distkv.wire.messages.to_gmanager import Locate, MembersQuery
from distkv.wire.messages.to_rmanager import Cancel, Creditors, HeartbeatAck, KeepAlive, Members, Submit


@dataclass(frozen=True, slots=True)
class FromWorker:
    """By the pipe of the own engine worker."""

    message: StepResult | Checksummed | Pulled | Linked | Revoked


@dataclass(frozen=True, slots=True)
class FromGManager:
    """By our own connection to a gManager."""

    message: Members | HeartbeatAck | Creditors


@dataclass(frozen=True, slots=True)
class PeerAnswered:
    """By our own connection to a peer: `peer_id` is whom we called."""

    peer_id: str
    message: PeerAnswer


@dataclass(frozen=True, slots=True)
class PeerRequested:
    """By our public port, from somebody who says to be the peer `claimed_sender`.

    Nothing proves that yet; an authenticated identity will stand here. What is known is `route`, which answers take and
    which nobody else can use while the sender keeps its connection's identity to itself.
    """

    claimed_sender: str
    route: bytes
    message: PeerRequest


@dataclass(frozen=True, slots=True)
class ClientRequested:
    """By our public port: a client is known by its route."""

    route: bytes
    message: Cancel | KeepAlive | MembersQuery | Locate


@dataclass(frozen=True, slots=True)
class GManagerRequested:
    """By a gManager's port, from an rManager or a client; `claimed_sender` as in PeerRequested."""

    claimed_sender: str
    route: bytes
    message: ToGManager


@dataclass(frozen=True, slots=True)
class Tokenized:
    """A `Submit` whose prompt, and whose bad words, have become token ids; those of the prompt are the vocabulary's."""

    submit: Submit
    token_ids: tuple[int, ...]
    route: bytes
    bad_words: tuple[tuple[int, ...], ...] = ()


@dataclass(frozen=True, slots=True)
class Tick:
    """Time went by. A gManager gets it only when its inbox was found empty."""


@dataclass(frozen=True, slots=True)
class PeerDisconnected:
    """The control connection to a peer broke; it may come back."""

    instance_id: str


@dataclass(frozen=True, slots=True)
class ClientGone:
    """Nobody is at the other end of this route any more."""

    route: bytes


@dataclass(frozen=True, slots=True)
class DrainRequested:
    """Stop taking requests, give back loans, finish what runs, within `timeout_s`."""

    timeout_s: float


Event = (
    FromWorker
    | FromGManager
    | PeerAnswered
    | PeerRequested
    | ClientRequested
    | Tokenized
    | Tick
    | PeerDisconnected
    | ClientGone
    | DrainRequested
)
"""What happens to an rManager: one type per channel, so that the sender is what the channel knows."""


@dataclass(frozen=True, slots=True)
class TellWorker:
    """On the ordered channel to the own engine worker."""

    body: ToWorker


@dataclass(frozen=True, slots=True)
class TellGManager:
    body: ToGManager


@dataclass(frozen=True, slots=True)
class TellPeer:
    """On our own connection to a peer's rManager: ordered; its answers come back on it."""

    instance_id: str
    body: PeerRequest


@dataclass(frozen=True, slots=True)
class Answer:
    """Back along the route a message came by: to a client, or to an instance that asked."""

    route: bytes
    body: ToClient | PeerAnswer | GManagerAnswer


@dataclass(frozen=True, slots=True)
class Broadcast:
    """The same message along many routes: encoded once, and sent behind every broadcast before it."""

    routes: tuple[bytes, ...]
    body: Members


@dataclass(frozen=True, slots=True)
class Publish:
    """Make known what happened: a line of the log."""

    event: ClusterEvent


@dataclass(frozen=True, slots=True)
class Exit:
    """Drained (code 0) or beyond help (code 1)."""

    code: int
    reason: str


Command = TellWorker | TellGManager | TellPeer | Answer | Publish | Exit
"""What an rManager tells its actor."""
GManagerCommand = Answer | Broadcast | Publish
"""What a gManager tells its actor."""
