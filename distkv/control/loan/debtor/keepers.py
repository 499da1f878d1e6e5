"""Creditors that had too little for a request that waits, and may keep some of what comes free for it."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

from distkv.control.request.sequence import Sequence
from distkv.control.rmanager.peers.member_table import MemberTable

KEPT_TIMES = 2
"""Creditors that could lend so many times what a request lacks, were they empty, are asked whenever it is tried."""


@dataclass(slots=True)
class KeptAt:
    """For one request: the rBlocks that each of these creditors could lend when it was asked, and their sum."""

    lendable: dict[str, int] = field(default_factory=dict)
    num_blocks: int = 0


class Keepers:
    """Of all requests of one instance. An answer costs the same, however many creditors a request has asked."""

    def __init__(self, members: MemberTable) -> None:
        self._members = members
        self._kept_at: dict[Sequence, KeptAt] = {}

    def of(self, seq: Sequence) -> Collection[str]:
        """Who may keep something for it."""
        kept_at = self._kept_at.get(seq)
        return () if kept_at is None else kept_at.lendable.keys()

    def add(self, seq: Sequence, creditor_id: str, num_blocks: int) -> None:
        """This creditor may, of the `num_blocks` that it lacks, unless others could lend far more than that."""
        kept_at = self._kept_at.setdefault(seq, KeptAt())
        if kept_at.num_blocks < KEPT_TIMES * num_blocks and creditor_id not in kept_at.lendable:
            member = self._members.find(creditor_id)
            kept_at.lendable[creditor_id] = blocks = 0 if member is None else member.lendable_blocks
            kept_at.num_blocks += blocks

    def take(self, seq: Sequence) -> list[str]:
        """Nothing is to be kept for it any more: returns who may keep something."""
        return sorted(self._kept_at.pop(seq, KeptAt()).lendable)

    def on_peer_lost(self, instance_id: str) -> None:
        """It keeps nothing for anybody."""
        for kept_at in self._kept_at.values():
            kept_at.num_blocks -= kept_at.lendable.pop(instance_id, 0)

    def validate(self) -> None:
        """The sums are what adding up would say."""
        for kept_at in self._kept_at.values():
            assert kept_at.num_blocks == sum(kept_at.lendable.values()), "keepers miscounted"
