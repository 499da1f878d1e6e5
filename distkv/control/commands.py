"""What control tells an actor to do, and the few events that are not messages.

Inbound messages are events and outbound messages are commands, so all that is added here is where a message came from
and where it goes.
"""

from __future__ import annotations

from dataclasses import dataclass

from distkv.events import ClusterEvent
from distkv.wire.messages.envelope import Contract, Control, FromGManager, ToClient, ToGManager, ToWorker
from distkv.wire.messages.to_rmanager import Submit


@dataclass(frozen=True, slots=True)
class Received:
    """A message. `route` leads back to its sender; b"" for the worker and for answers on our own connections."""

    sender: str
    body: Control
    route: bytes = b""


@dataclass(frozen=True, slots=True)
class Tokenized:
    """A `Submit` whose prompt has become token ids."""

    submit: Submit
    token_ids: tuple[int, ...]
    route: bytes


@dataclass(frozen=True, slots=True)
class Tick:
    """Time went by."""


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


Event = Received | Tokenized | Tick | PeerDisconnected | ClientGone | DrainRequested


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
    body: Contract


@dataclass(frozen=True, slots=True)
class Answer:
    """Back along the route a message came by: to a client, or to an instance that asked."""

    route: bytes
    body: ToClient | Contract | FromGManager


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
