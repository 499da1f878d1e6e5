"""What a policy of the gManager decides, and what it sees of the cluster.

Decisions are pure functions of their arguments: the gManager owns the ledger, keeps account of what was decided, and
sends the answers. What a policy sees may be stale, so its decisions are advice to instances.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import msgspec

from distkv.types import InstanceState
from distkv.wire.messages.to_gmanager import BorrowQuery, Locate


class InstanceView(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One instance as of now. Requests sent there since its last heartbeat count in `free_blocks` and `load`.

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

    def blocks_for(self, num_tokens: int) -> int:
        """How many rBlocks of this instance hold so many tokens."""
        return -(-num_tokens // max(1, self.block_tokens))


class Move(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """`num_blocks` of a request should go from its debtor to a creditor (move_kvcache of 001 §6.2)."""

    request_id: str
    debtor_id: str
    creditor_id: str
    num_blocks: int


class Policy(Protocol):
    """`instances` are all that are known, in any state, in no order that matters."""

    def dispatch(self, request: Locate, instances: Sequence[InstanceView]) -> InstanceView | None:
        """The instance that should serve a request; None if none can."""

    def recommend(self, query: BorrowQuery, instances: Sequence[InstanceView]) -> Sequence[InstanceView]:
        """Whom a debtor should ask for memory, in this order."""

    def plan(self, instances: Sequence[InstanceView]) -> Sequence[Move]:
        """Moves that no debtor has requested; decided once a heartbeat period."""
