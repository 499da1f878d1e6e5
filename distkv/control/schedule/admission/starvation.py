"""Which waiting requests need more memory than the live instances have, and since when."""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections.abc import Callable, Iterator

from distkv.control.request.sequence import Sequence
from distkv.control.timers import Timers


class Starvation:
    """Waiting sequences by size. Who starves is looked at where the memory or the queue has changed, not for all.
    on_change: called with one that starves, and did not, or the other way round."""

    def __init__(self, patience_s: float, on_change: Callable[[Sequence], None]) -> None:
        self._patience_s, self._on_change = patience_s, on_change
        self._by_size: list[tuple[int, float, str, Sequence]] = []
        self._unjudged: dict[str, tuple[Sequence, int]] = {}
        self._pool_blocks: float = math.inf
        self._patience: Timers[str] = Timers()

    def add(self, seq: Sequence, size: int) -> None:
        """It waits; size: rBlocks that it needs."""
        insort(self._by_size, (size, *seq.age, seq))
        self._unjudged[seq.request_id] = seq, size

    def remove(self, seq: Sequence, size: int) -> None:
        """It does not wait any more."""
        at = bisect_left(self._by_size, (size, *seq.age))
        assert self._by_size[at][3] is seq, f"{seq.request_id} is not filed under its size"
        del self._by_size[at]
        self._unjudged.pop(seq.request_id, None)
        self._patience.cancel(seq.request_id)

    def judge(self, pool_blocks: int, now: float, most: int) -> list[str]:
        """The live instances together have so much; returns the ids of those that have lacked it for too long, at most
        so many, each once."""
        for seq, size in self._unjudged.values():
            self._judge(seq, size, pool_blocks, now)
        self._unjudged.clear()
        if pool_blocks != self._pool_blocks:
            first, last = sorted((pool_blocks, self._pool_blocks))
            changed = self._by_size[bisect_left(self._by_size, (first + 1,)) : bisect_left(self._by_size, (last + 1,))]
            for size, _, _, seq in changed:
                self._judge(seq, size, pool_blocks, now)
            self._pool_blocks = pool_blocks
        return self._patience.take_due(now, most)

    def larger(self, num_blocks: int) -> Iterator[Sequence]:
        """All that need more, those that need least first; not to be added to or removed from meanwhile."""
        for at in range(bisect_left(self._by_size, (num_blocks + 1,)), len(self._by_size)):
            yield self._by_size[at][3]

    def next_deadline(self) -> float:
        """When the next one has waited for too long."""
        return self._patience.next_at()

    def validate(self) -> None:
        """Those that starve are those that are too large."""
        for size, _, _, seq in self._by_size:
            if seq.request_id not in self._unjudged:
                assert (seq.starved_since is not None) == (size > self._pool_blocks), f"{seq.request_id} starves or not"
        self._patience.validate()

    def _judge(self, seq: Sequence, size: int, pool_blocks: int, now: float) -> None:
        did_starve = seq.starves
        seq.starve(now if size > pool_blocks else None)
        if seq.starves != did_starve:
            self._on_change(seq)
        if seq.starved_since is None:
            self._patience.cancel(seq.request_id)
        else:
            self._patience.set(seq.request_id, seq.starved_since + self._patience_s)
