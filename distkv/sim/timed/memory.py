"""What lies in the pools of a simulated cluster, looked at now and then."""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from distkv.sim.machines.node import Node


class MemorySample(msgspec.Struct, frozen=True):
    """At one moment. By instance, in their order: own, rBlocks of its own requests in its pool; lent, those granted to
    others; free; running and waiting, requests. loans: creditor, debtor and rBlocks, by the instances' indices. An
    instance that is dead has nothing at all."""

    at_s: float
    own: array[int]
    lent: array[int]
    free: array[int]
    running: array[int]
    waiting: array[int]
    loans: tuple[tuple[int, int, int], ...]

    @property
    def used(self) -> list[float]:
        """What is in use of the pool of each that lives."""
        found = zip(self.own, self.lent, self.free, strict=True)
        return [(own + lent) / (own + lent + free) for own, lent, free in found if own + lent + free]

    @property
    def imbalance(self) -> float:
        """How much more of the fullest pool is in use than of all on average."""
        used = self.used
        return max(used) - sum(used) / len(used) if used else 0.0


def look(nodes: Mapping[str, Node[Any]], names: Sequence[str], at_s: float) -> MemorySample:
    """At all pools now."""
    index_of = {name: index for index, name in enumerate(names)}
    columns: list[array[int]] = [array("i") for _ in range(5)]
    loans: list[tuple[int, int, int]] = []
    for index, name in enumerate(names):
        node = nodes.get(name)
        if node is None or not node.alive:
            row = (0, 0, 0, 0, 0)
        else:
            state = node.rm.state
            lent, free = state.loans.num_blocks, state.pool.num_free
            own = state.pool.num_slots - lent - free
            row = own, lent, free, len(state.running()), state.sequences.num_waiting
            if lent:
                loans += [(index, index_of[one.instance_id], one.num_blocks) for one in state.loans.debtors()]
        for column, value in zip(columns, row, strict=True):
            column.append(value)
    own_blocks, lent_blocks, free_blocks, running, waiting = columns
    return MemorySample(at_s, own_blocks, lent_blocks, free_blocks, running, waiting, tuple(loans))
