"""What a policy of the gManager decides, and what it sees of the cluster.

Decisions are pure functions of their arguments: the gManager owns the ledger, keeps account of what was decided, and
sends the answers. What a policy sees may be stale, so its decisions are advice to instances.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Protocol

import msgspec

from distkv.types import InstanceState
from distkv.wire.messages.to_gmanager import BorrowQuery, Locate

MOST_LOAD = 1023
"""Instances with more requests than this are equally loaded to `Instances.fitting`."""


class InstanceView(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One instance as of now. Requests sent there since its last heartbeat count in `free_blocks` and `load`, and what
    it was recommended for since then is missing in `lendable_blocks`.

    host_key: equal on instances that can map each other's memory; empty if it has no tensors yet. waiting, load:
    requests that wait there, and all of them.
    """

    instance_id: str
    state: InstanceState
    host_key: str
    block_tokens: int
    free_blocks: int
    lendable_blocks: int
    waiting: int
    load: int

    @property
    def free_tokens(self) -> int:
        """How many tokens its free rBlocks hold."""
        return self.free_blocks * max(1, self.block_tokens)

    def blocks_for(self, num_tokens: int) -> int:
        """How many rBlocks of this instance hold so many tokens."""
        return -(-num_tokens // max(1, self.block_tokens))


class Move(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """`num_blocks` of a request should go from its debtor to a creditor (move_kvcache of 001 §6.2)."""

    request_id: str
    debtor_id: str
    creditor_id: str
    num_blocks: int


class Instances(Protocol):
    """All instances that are known, by indices: nothing but `all` looks at more of them than it returns or skips.
    Equal ones are told apart by name."""

    def get(self, instance_id: str) -> InstanceView | None:
        """One of them, in any state."""

    def fitting(self, num_tokens: int, *, waiting: bool, skip: Collection[str]) -> InstanceView | None:
        """The ready instance with the fewest requests among those that have room for so many tokens, and of equally
        loaded ones that with the most room. waiting: whether requests wait there."""

    def roomiest(self, *, waiting: bool, skip: Collection[str]) -> InstanceView | None:
        """The ready instance with the most room, whatever its load."""

    def lenders(self, host_key: str | None, *, skip: Collection[str]) -> Iterator[InstanceView]:
        """Ready instances with anything to lend, those with most first; of one host, or of all."""

    def all(self) -> Iterator[InstanceView]:
        """Each of them, in any state, in no order that matters."""


class Policy(Protocol):
    """Decides by what it sees of `instances`. plans: whether `plan` ever returns anything."""

    plans: bool

    def dispatch(self, request: Locate, instances: Instances) -> InstanceView | None:
        """The instance that should serve a request; None if none can."""

    def recommend(self, query: BorrowQuery, instances: Instances) -> Sequence[InstanceView]:
        """Whom a debtor should ask for memory, in this order."""

    def plan(self, instances: Instances) -> Sequence[Move]:
        """Moves that no debtor has requested; decided once a heartbeat period."""
