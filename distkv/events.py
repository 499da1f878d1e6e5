"""What happens to a cluster, one frozen type per kind of event: the lines of its log, and what a dashboard will follow.

The name of an event is its tag; its fields never hold prompts, outputs or token ids.
"""

from __future__ import annotations

from typing import Any

import msgspec

from distkv.types import FinishReason, InstanceState


class ClusterEvent(msgspec.Struct, frozen=True, kw_only=True, tag_field="event", gc=False):
    """Base of all events. Fields that name an instance hold its id; `blocks` counts rBlocks."""

    @property
    def name(self) -> str:
        """What the log calls it."""
        return str(self.__struct_config__.tag)

    def fields(self) -> dict[str, Any]:
        """What the log says of it besides its name."""
        return msgspec.structs.asdict(self)


# --- seen by the gManager


class Joined(ClusterEvent, frozen=True, tag="joined"):
    """An instance is new, or in a new incarnation."""

    instance: str
    pid: int
    blocks: int


class Replaced(ClusterEvent, frozen=True, tag="replaced"):
    """A new incarnation came while the one before it still seemed to live."""

    instance: str
    old_pid: int
    new_pid: int


class JoinRefused(ClusterEvent, frozen=True, tag="join_refused"):
    """An instance does not fit this cluster. left_out: how many such events before it were not made known."""

    instance: str
    reason: str
    left_out: int = 0


class ClaimRefused(ClusterEvent, frozen=True, tag="claim_refused"):
    """A connection that is not the instance's own spoke in its name; nothing came of it. left_out: as above."""

    instance: str
    message: str
    left_out: int = 0


class InstanceStateChanged(ClusterEvent, frozen=True, tag="instance_state"):
    """An instance is in this state from now on."""

    instance: str
    state: InstanceState


class Left(ClusterEvent, frozen=True, tag="left"):
    """An instance has drained and said goodbye."""

    instance: str


class MovePlanned(ClusterEvent, frozen=True, tag="move_planned"):
    """`blocks` of a request should go from its debtor to `destination`, or home if that is the debtor; both are
    expected to generate so much more."""

    request_id: str
    debtor: str
    destination: str
    blocks: int
    gain_tokens_per_s: float


class MoveJudged(ClusterEvent, frozen=True, tag="move_judged"):
    """Some seconds after a move was planned: what both instances were expected to generate more, and what they do, by
    their heartbeats and whatever else happened there."""

    request_id: str
    debtor: str
    destination: str
    blocks: int
    predicted_tokens_per_s: float
    achieved_tokens_per_s: float


class MoveDropped(ClusterEvent, frozen=True, tag="move_dropped"):
    """A move that was planned was not carried out; it is not judged, and may be planned again."""

    request_id: str
    debtor: str
    destination: str
    blocks: int
    why: str


class DgfmBegun(ClusterEvent, frozen=True, tag="dgfm_begun"):
    """A cycle of debts is to be swapped: each of `members` owes the next, and the last one the first. Together they
    would bring home `blocks`. run: counts those of this gManager."""

    run: int
    members: str
    blocks: int


class DgfmEnded(ClusterEvent, frozen=True, tag="dgfm_ended"):
    """A run is over: members brought home `blocks` of the `predicted` ones. why: not all of them; else empty."""

    run: int
    members: str
    predicted: int
    blocks: int
    why: str


# --- seen by an rManager: requests it owns


class Accepted(ClusterEvent, frozen=True, tag="accepted"):
    """A request will be served."""

    request_id: str
    prompt_tokens: int


class Finished(ClusterEvent, frozen=True, tag="finished"):
    """A request has all of its answer; `generated` counts tokens."""

    request_id: str
    reason: FinishReason
    generated: int


class Cancelled(ClusterEvent, frozen=True, tag="cancelled"):
    """A request was stopped by its client, or because nobody is there to read the answer."""

    request_id: str


class Failed(ClusterEvent, frozen=True, tag="failed"):
    """A request ended without (all of) its answer."""

    request_id: str
    reason: str


class Redispatched(ClusterEvent, frozen=True, tag="redispatched"):
    """A request that waited for memory goes to another instance, which has it. waited_s: how long it did."""

    request_id: str
    instance: str
    waited_s: float


class Preempted(ClusterEvent, frozen=True, tag="preempted"):
    """A request gave up its memory and will start over; it has `num_tokens` by now."""

    request_id: str
    num_tokens: int


# --- seen by an rManager: loans


class Lent(ClusterEvent, frozen=True, tag="lent"):
    """As creditor: a span was granted."""

    request_id: str
    debtor: str
    blocks: int


class LeaseExpired(ClusterEvent, frozen=True, tag="lease_expired"):
    """As creditor: a debtor stopped renewing; its span is taken back."""

    request_id: str
    debtor: str


class MoveFailed(ClusterEvent, frozen=True, tag="move_failed"):
    """As debtor: a creditor could not take blocks over."""

    request_id: str
    creditor: str
    problem: str


class MoveBegun(ClusterEvent, frozen=True, tag="move_begun"):
    """As debtor: as planned, up to `blocks` of a request go to `destination`, or come home if that is the debtor."""

    request_id: str
    destination: str
    blocks: int
    gain_tokens_per_s: float


class Reclaimed(ClusterEvent, frozen=True, tag="reclaimed"):
    """As creditor: a debtor is to give `blocks` of a request back."""

    request_id: str
    debtor: str
    blocks: int
    why: str


class SpanLost(ClusterEvent, frozen=True, tag="span_lost"):
    """As debtor: `blocks` of a request at a creditor are lost and are computed again."""

    request_id: str
    creditor: str
    blocks: int
    why: str


# --- seen by an rManager: itself and its peers


class PeerLost(ClusterEvent, frozen=True, tag="peer_lost"):
    """A peer is gone; `restarted` if a new incarnation of it is known already."""

    peer: str
    restarted: bool


class Draining(ClusterEvent, frozen=True, tag="draining"):
    """A drain begins, with so many requests running and spans lent."""

    running: int
    loans: int


# --- seen by an rManager: its worker


class UnexpectedMessage(ClusterEvent, frozen=True, tag="unexpected_message"):
    """A message that nobody waits for."""

    sender: str
    type: str
