"""What those that do not run need in order to begin or go on."""

from __future__ import annotations

from collections.abc import Iterator
from heapq import merge
from itertools import chain, islice
from typing import NamedTuple

from distkv.control.request.sequence import SeqState, Sequence
from distkv.control.rmanager.state import RManagerState
from distkv.control.schedule.holdings import Holdings

FORESEEN_S = 10.0
"""For so long a request waits for memory to grow into, besides what its prompt needs."""


class Needs(NamedTuple):
    """Of one sequence: rBlocks that it lacks a place for, those that it is expected to need besides, and those that are
    free for it here."""

    lacks: int
    growth: int
    room: int


class Demand:
    """rBlocks and tokens that waiting sequences of one instance need, and what is free for them."""

    def __init__(self, state: RManagerState, holdings: Holdings) -> None:
        self._state = state
        self._holdings = holdings
        self._queue = state.sequences.queue

    def room(self, seq: Sequence | None = None) -> int:
        """Slots for who is admitted next: all free ones but those that the running ones are expected to grow into; one
        for each of them when `seq` resumes, for what it holds is of use to nobody else."""
        is_resuming = seq is not None and seq.placement.holds_kv
        keep = len(self._state.running()) if is_resuming else self._state.growing.blocks()
        return max(0, self._state.pool.num_free - keep)

    def growth(self, seq: Sequence, now: float) -> int:
        """rBlocks that must be available for the growth of a request before it is admitted. 0 for one that resumes,
        has waited FORESEEN_S, or would run alone at an instance without creditors."""
        state = self._state
        is_alone = not state.running() and not state.has_creditors
        if seq.placement.holds_kv or is_alone or now - seq.request.arrival >= FORESEEN_S:
            return 0
        return min(state.growing.blocks_with(seq), max(0, state.cluster_blocks() - seq.size_blocks))

    def short(self, seq: Sequence, now: float) -> int:
        """rBlocks that it lacks beyond what is free for it here; negative where that is more than enough."""
        return self._holdings.unplaced_blocks(seq) + self.growth(seq, now) - self.room(seq)

    def needs(self, seq: Sequence, now: float) -> Needs:
        """What a sequence needs in order to begin or go on: what it lacks, what it is expected to grow by, and what is
        free here for it."""
        begins = seq.state is SeqState.WAITING and not seq.placement.holds_kv
        lacks = seq.size_blocks if begins else self._holdings.unplaced_blocks(seq)
        return Needs(lacks, self.growth(seq, now), self.room(seq))

    def waiting_blocks(self) -> int:
        """rBlocks that waiting requests need, also those that borrow."""
        holding = chain(self._queue.resuming, self._state.sequences.acquiring)
        return self._queue.unplaced_blocks + sum(map(self._holdings.unplaced_blocks, holding))

    def waiting_sizes(self, most: int) -> tuple[int, ...]:
        """rBlocks that each of those that wait longest lacks, oldest first, also of one that borrows."""
        return tuple(
            self._holdings.unplaced_blocks(seq)
            if seq.placement.num_local_slots or seq.placement.debts
            else seq.size_blocks
            for seq in self._longest_waiting(most)
        )

    def waiting_tokens(self, most: int) -> tuple[int, ...]:
        """Tokens that each of these would need memory for elsewhere; 0 if it cannot go."""
        return tuple(map(self._state.movable_tokens, self._longest_waiting(most)))

    def _longest_waiting(self, most: int) -> Iterator[Sequence]:
        waiting = merge(self._state.sequences.acquiring, self._queue.waiting, key=lambda seq: seq.age)
        return islice(waiting, most)
