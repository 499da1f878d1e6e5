"""A bound: the memory of all instances is one pool, at no cost, and each computes by itself.

The pooled oracle (`pooled`) computes the last requests of a load with the cores of all instances together, which no
sharing of memory brings. This one does not: its instances are as the others, with the same state machines, but that
each may take any rBlock that none of them has. They decide each for itself, so it is no proof that nothing else could
do better.
"""

from __future__ import annotations

from distkv.control.blocks import BlockPool, SlotState


class OnePool(BlockPool):
    """What one instance has of it: as many slots as all have together, of which those are free that nobody uses."""

    def __init__(self, num_slots: int, all_pools: list[OnePool]) -> None:
        """all_pools: one for each instance; this one is added."""
        super().__init__(num_slots)
        all_pools.append(self)
        self._all_pools = all_pools

    @property
    def num_free(self) -> int:
        return self.num_slots - sum(one.num_slots - one.count(SlotState.FREE) for one in self._all_pools)
