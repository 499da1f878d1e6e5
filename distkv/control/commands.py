"""What control tells an actor to do, and the few events that are not messages.

Inbound messages are events and outbound messages are commands, so all that is added here is where a message came from
and where it goes.
"""

from __future__ import annotations

from array import array

import msgspec

from distkv.events import ClusterEvent
from distkv.wire.messages.envelope import GManagerAnswer, PeerAnswer, PeerRequest, ToClient, ToGManager, ToWorker
from distkv.wire.messages.from_worker import Checksummed, Linked, Pulled, Revoked, StepResult
from distkv.wire.messages.to_gmanager import ClusterQuery, ExplainQuery, Locate, MembersQuery
from distkv.wire.messages.to_rmanager import (
    Cancel,
    Creditors,
    Freeze,
    HeartbeatAck,
    KeepAlive,
    Members,
    MoveKvcache,
    Redispatch,
    Submit,
    Swap,
    Thaw,
)


class FromWorker(msgspec.Struct, frozen=True, tag=True):
    """By the pipe of the own engine worker."""

    message: StepResult | Checksummed | Pulled | Linked | Revoked


class Decoded(msgspec.Struct, frozen=True):
    """Results that came while decode was quiet, the next ones, and when each came (`QuietDecode`). For each of them the
    worker has computed the newest Step once more, a position further, or will. In a real process this never happens."""

    results: tuple[StepResult, ...]
    times: tuple[float, ...]


class Continued(msgspec.Struct, frozen=True):
    """What clients get of `Decoded`: one token of each result for every request, at the time of that result. By
    request, in one order: request_ids, token_ids, texts."""

    request_ids: tuple[str, ...]
    token_ids: tuple[tuple[int, ...], ...]
    texts: tuple[str, ...]


ByGManager = Members | HeartbeatAck | Creditors | MoveKvcache | Redispatch | Freeze | Swap | Thaw
"""What control hears of a gManager; that it may not join concerns the process."""


class FromGManager(msgspec.Struct, frozen=True, tag=True):
    """By our own connection to a gManager."""

    message: ByGManager


class PeerAnswered(msgspec.Struct, frozen=True, tag=True):
    """By our own connection to a peer: `peer_id` is whom we called."""

    peer_id: str
    message: PeerAnswer


class PeerRequested(msgspec.Struct, frozen=True, tag=True):
    """By our public port, from somebody who says to be the peer `claimed_sender`.

    Nothing proves that yet; an authenticated identity will stand here. What is known is `route`, which answers take and
    which nobody else can use while the sender keeps its connection's identity to itself.
    """

    claimed_sender: str
    route: bytes
    message: PeerRequest


class ClientRequested(msgspec.Struct, frozen=True, tag=True):
    """By our public port: a client is known by its route."""

    route: bytes
    message: Cancel | KeepAlive | MembersQuery | Locate | ExplainQuery | ClusterQuery


class GManagerRequested(msgspec.Struct, frozen=True, tag=True):
    """By a gManager's port, from an rManager or a client; `claimed_sender` as in PeerRequested."""

    claimed_sender: str
    route: bytes
    message: ToGManager


class Tokenized(msgspec.Struct, frozen=True, tag=True):
    """A `Submit` whose prompt, and whose bad words, have become token ids; those of the prompt are the vocabulary's.
    The grammar of what its output must be is held for it until `ReleaseGrammar`."""

    submit: Submit
    token_ids: array[int]
    route: bytes
    bad_words: tuple[tuple[int, ...], ...] = ()
    grammar_id: int | None = None


class Tick(msgspec.Struct, frozen=True, tag=True):
    """Time went by. A gManager gets it only when its inbox was found empty, or has been read in turn. is_behind:
    messages lie in an rManager's that it has not read yet, so that who was not heard may have spoken."""

    is_behind: bool = False


class PeerDisconnected(msgspec.Struct, frozen=True, tag=True):
    """The control connection to a peer broke; it may come back."""

    instance_id: str


class ClientGone(msgspec.Struct, frozen=True, tag=True):
    """Nobody is at the other end of this route any more."""

    route: bytes


class DrainRequested(msgspec.Struct, frozen=True, tag=True):
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


class TellWorker(msgspec.Struct, frozen=True, tag=True):
    """On the ordered channel to the own engine worker."""

    body: ToWorker


class TellGManager(msgspec.Struct, frozen=True, tag=True):
    body: ToGManager


class TellPeer(msgspec.Struct, frozen=True, tag=True):
    """On our own connection to a peer's rManager: ordered; its answers come back on it."""

    instance_id: str
    body: PeerRequest


class Answer(msgspec.Struct, frozen=True, tag=True):
    """Back along the route a message came by: to a client, or to an instance that asked."""

    route: bytes
    body: ToClient | PeerAnswer | GManagerAnswer


class Broadcast(msgspec.Struct, frozen=True, tag=True):
    """The same message along many routes: encoded once, and sent behind every broadcast before it."""

    routes: tuple[bytes, ...]
    body: Members


class Publish(msgspec.Struct, frozen=True, tag=True):
    """Make known what happened: a line of the log."""

    event: ClusterEvent


class ReleaseGrammar(msgspec.Struct, frozen=True, tag=True):
    """The request that this grammar was held for needs it no more."""

    grammar_id: int


class Exit(msgspec.Struct, frozen=True, tag=True):
    """Drained (code 0) or beyond help (code 1)."""

    code: int
    reason: str


Command = TellWorker | TellGManager | TellPeer | Answer | Publish | ReleaseGrammar | Exit
"""What an rManager tells its actor."""
GManagerCommand = Answer | Broadcast | Publish
"""What a gManager tells its actor."""
