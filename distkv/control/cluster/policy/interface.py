"""What a policy of the gManager decides, and what it sees of the cluster.

Decisions are pure functions of their arguments: the gManager owns the ledger, keeps account of what was decided, and
sends the answers. What a policy sees may be stale, so its decisions are advice to instances.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from random import Random
from typing import NamedTuple, Protocol

import msgspec

from distkv.control.performance.model import PerformanceModel
from distkv.types import InstanceState
from distkv.wire.messages.profile import Profile
from distkv.wire.messages.to_gmanager import BorrowQuery, LongRequest

MOST_LOAD = 1023
"""Instances with more requests than this are equally loaded to `Instances.fitting`."""


class InstanceView(msgspec.Struct, frozen=True, gc=False):
    """One instance as of now. Requests sent there that its heartbeats do not know yet count in `free_blocks`, in `load`
    and, with their prompts, in `prefill_tokens`; what it was recommended for since the last one is missing in
    `lendable_blocks`.

    host_key: equal on instances that can map each other's memory; empty if it has no tensors yet. waiting, load:
    requests that wait there, and all of them. profile, model: what its hardware does, and predictions by it; None if
    that is not known. The others are as its last heartbeat told them, and 0 before the first; overdrawn_blocks:
    promised to requests on their way and not free; longest: those of the running ones that most rBlocks could leave.
    waiting_sizes, waiting_tokens: of waiting requests that were not sent on since then. max_model_len: as in `Member`;
    wanted_back: as in `Heartbeat`.
    """

    instance_id: str
    state: InstanceState
    host_key: str
    block_tokens: int
    free_blocks: int
    lendable_blocks: int
    waiting: int
    load: int
    profile: Profile | None = None
    model: PerformanceModel | None = None
    overdrawn_blocks: int = 0
    total_blocks: int = 0
    running: int = 0
    waiting_blocks: int = 0
    step_s: float = 0.0
    context_tokens: int = 0
    prefill_tokens: int = 0
    borrowed_blocks: int = 0
    lent_blocks: int = 0
    decode_base_s: float = 0.0
    decode_row_s: float = 0.0
    prompt_token_s: float = 0.0
    output_tokens: int = 0
    waiting_sizes: tuple[int, ...] = ()
    waiting_tokens: tuple[int, ...] = ()
    longest: tuple[LongRequest, ...] = ()
    growing_blocks: int = 0
    max_num_seqs: int = 0
    generated_per_s: float = 0.0
    max_model_len: int = 0
    wanted_back: bool = False

    def takes(self, num_tokens: int) -> bool:
        """Whether a request of so many tokens, prompt and output, is no longer than it lets any be."""
        return not self.max_model_len or num_tokens <= self.max_model_len

    @property
    def room_tokens(self) -> int:
        """How many tokens its free rBlocks hold; below 0 if more than is free was promised."""
        return (self.free_blocks - self.overdrawn_blocks) * max(1, self.block_tokens)

    def goes_by(self, num_blocks: int) -> bool:
        """Whether a request whose prompt takes so many rBlocks begins before those that wait there: it fits what is
        free besides growth, and they take more than that, on average."""
        room = self.free_blocks - self.overdrawn_blocks - self.growing_blocks
        return num_blocks <= room and self.waiting_blocks > self.waiting * room

    @property
    def begins_at_once(self) -> bool:
        """Whether a request that fits what it can spare would: there is a place in the batch. Who waits there needs
        more than that, or would have begun, and who fits goes by."""
        return not 0 < self.max_num_seqs <= self.load - self.waiting

    def blocks_for(self, num_tokens: int) -> int:
        """How many rBlocks of this instance hold so many tokens."""
        return -(-num_tokens // max(1, self.block_tokens))


class Move(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """`num_blocks` of a request should go from its debtor to a creditor, or home if that is the debtor itself
    (move_kvcache of 001 §6.2). gain_tokens_per_s: what both are expected to generate more."""

    request_id: str
    debtor_id: str
    creditor_id: str
    num_blocks: int
    gain_tokens_per_s: float = 0.0

    @property
    def is_homeward(self) -> bool:
        """Whether blocks come home."""
        return self.creditor_id == self.debtor_id


class Instances(Protocol):
    """All instances that are known, by indices: nothing but `all` looks at more of them than it returns or skips.
    Equal ones are told apart by name. Where more than some dozens have about the same memory, within an eighth, they
    come by turns instead of by what they have exactly."""

    def get(self, instance_id: str) -> InstanceView | None:
        """One of them, in any state."""

    def fitting(self, num_tokens: int, *, waiting: bool, skip: Collection[str]) -> InstanceView | None:
        """The ready instance with the fewest requests among those that have room for so many tokens, and of equally
        loaded ones that with the most room. waiting: whether requests wait there."""

    def roomiest(self, *, waiting: bool, skip: Collection[str]) -> InstanceView | None:
        """The ready instance with the most room, whatever its load."""

    def able_to_lend(self, host_key: str | None, *, waiting: bool, skip: Collection[str]) -> Iterator[InstanceView]:
        """Ready instances with anything to lend, those with most first; of one host, or of all. waiting: as above."""

    def lent(self, creditor_id: str, debtor_id: str) -> int:
        """rBlocks that one instance lends to another, with what it was recommended for since its last heartbeat."""

    def drawn(self, most: int, some: int, entropy: Random, *, skip: Collection[str]) -> Iterator[InstanceView]:
        """All ready instances, if there are no more than `most`; else `some` of them are drawn, perhaps one twice."""

    def all(self) -> Iterator[InstanceView]:
        """Each of them, in any state, in no order that matters."""


class Uneven(NamedTuple):
    """A host, those sorted first whose fullest instance is furthest ahead. minus_ahead: by so much of a pool, below 0,
    the fullest is ahead of the mean of its host."""

    minus_ahead: float
    host_key: str


class Evenness(Protocol):
    """Ready instances of each host by how full their pools are."""

    def uneven(self, after: Uneven | None) -> Iterator[Uneven]:
        """Hosts with several instances, the most uneven first; those behind this one, or all."""

    def mean(self, host_key: str) -> float:
        """Share of a pool that is in use on a host, each instance counting alike."""

    def emptiest(self, host_key: str) -> Iterator[str]:
        """Of a host, the least full first."""

    def fullest(self, host_key: str) -> str:
        """Of a host."""


class Balance(Protocol):
    """Ready instances by how much of their memory is in use and wanted, for policies that plan: by indices. fullness:
    of the instances of each host."""

    @property
    def fullness(self) -> Evenness:
        """By host."""

    def get(self, instance_id: str) -> InstanceView | None:
        """One of them, or one in any other state."""

    def creditors_of(self, debtor_id: str) -> Mapping[str, int]:
        """Where an instance has borrowed, and how many rBlocks."""

    def debtors(self, after: tuple[int, str] | None, *, needs: bool) -> Iterator[InstanceView]:
        """Those of which blocks can leave and that lend nothing, by ascending batch; those behind this batch and name,
        or all. needs: whether requests wait there, or will outgrow the pool."""

    def owing(self, after: str) -> Iterator[InstanceView]:
        """Those that have borrowed and where nobody waits, by name; those behind this one."""

    def least_used(self) -> Iterator[InstanceView]:
        """Those with anything to lend, by ascending utilisation, which is rounded to percents."""


class RecentMoves(Protocol):
    """What was planned lately, so that it is not undone or done twice.

    went_to: the batch and name of the debtor at which the plan before ended, None if it came to the last, of those that
    need memory and of others; came_from: the name of the last one that it looked at for moves home. evened: the host
    that it looked at last.
    """

    went_to: dict[bool, tuple[int, str] | None]
    came_from: str
    evened: Uneven | None

    def may_leave(self, request_id: str) -> bool:
        """Whether blocks of a request may be planned to leave."""

    def may_come_home(self, request_id: str) -> bool:
        """Whether blocks of a request may be planned to come home."""

    def may_plan_for(self, debtor_id: str) -> bool:
        """Whether blocks of this debtor's requests may be planned to leave."""


class Policy(Protocol):
    """Decides by what it sees of `instances`. plans: whether `plan` ever returns anything. shares_memory: whether
    instances lend to each other at all. swaps: whether cycles of debts may come about, and are cancelled by DGFM."""

    plans: bool
    shares_memory: bool
    swaps: bool

    def recommend(self, query: BorrowQuery, instances: Instances) -> Sequence[InstanceView]:
        """Whom a debtor should ask for memory, in this order."""

    def plan(self, balance: Balance, recent: RecentMoves) -> Sequence[Move]:
        """Moves that no debtor has requested; decided once a heartbeat period."""
