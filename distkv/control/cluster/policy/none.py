"""Nobody lends: each instance has its own memory only."""

from __future__ import annotations

from collections.abc import Sequence

from distkv.control.cluster.policy.interface import Balance, Instances, InstanceView, Move, RecentMoves
from distkv.wire.messages.to_gmanager import BorrowQuery


class NoPolicy:
    """`none`."""

    plans = False
    swaps = False
    shares_memory = False

    def recommend(self, query: BorrowQuery, instances: Instances) -> Sequence[InstanceView]:
        """Nobody."""
        return ()

    def plan(self, balance: Balance, recent: RecentMoves) -> Sequence[Move]:
        """Nothing."""
        return ()
