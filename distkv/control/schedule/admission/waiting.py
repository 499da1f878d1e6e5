"""The sequences of one instance that are not running, by what admission asks: who is next, and who fits.

Nothing here looks at all of them: each question is answered by an index.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator, Sized
from dataclasses import dataclass
from heapq import merge

from distkv.control.request.sequence import Sequence
from distkv.control.schedule.admission.age_order import AgeOrder
from distkv.control.schedule.admission.starvation import Starvation
from distkv.control.timers import Timers

AGED_S = 2.0
"""Who has waited for so long is not overtaken by younger ones."""


@dataclass(slots=True)
class Filed:
    """How a waiting sequence is filed. size, tokens: rBlocks that all of it takes, and its tokens. resumes: it holds
    KV. ready: it may try."""

    seq: Sequence
    size: int
    tokens: int
    resumes: bool
    ready: bool


class WaitingQueue:
    """waiting: those in that state. resuming: of them, those that hold KV: few, for memory is. hopeful: of them, those
    that do not starve; nobody else is ready, or aged. aged: of all that do not run, those that have not for AGED_S.
    unplaced_blocks, unplaced_tokens: rBlocks that those that hold nothing will need, and their tokens."""

    def __init__(self, patience_s: float) -> None:
        self.waiting = AgeOrder()
        self.resuming = AgeOrder()
        self.hopeful = AgeOrder()
        self.aged = AgeOrder()
        self.starvation = Starvation(patience_s, self._refile)
        self.unplaced_blocks = self.unplaced_tokens = 0
        self._filed: dict[str, Filed] = {}
        self._ready = AgeOrder()
        self._ready_by_size: dict[int, AgeOrder] = {}
        self._ready_sizes: list[int] = []
        self._resting: Timers[str] = Timers()
        self._unseen: dict[str, Sequence] = {}
        self._young: dict[str, Sequence] = {}
        self._aged_starving: dict[str, Sequence] = {}
        self._ageing: Timers[str] = Timers()

    # --- by the book of sequences

    def stopped(self, seq: Sequence) -> None:
        """It does not run, from now on."""
        self._unseen[seq.request_id] = seq

    def started(self, seq: Sequence) -> None:
        """It runs, or has ended."""
        self._unseen.pop(seq.request_id, None)
        self._young.pop(seq.request_id, None)
        self._aged_starving.pop(seq.request_id, None)
        self._ageing.cancel(seq.request_id)
        if seq in self.aged:
            self.aged.remove(seq)

    def add(self, seq: Sequence) -> None:
        """It waits, until its time to retry at least."""
        num_tokens = len(seq.request.tokens)
        filed = self._filed[seq.request_id] = Filed(seq, seq.size_blocks, num_tokens, seq.placement.holds_kv, False)
        self.waiting.add(seq)
        if not seq.starves:
            self.hopeful.add(seq)
        self.starvation.add(seq, filed.size)
        if filed.resumes:
            self.resuming.add(seq)
        else:
            self.unplaced_blocks += filed.size
            self.unplaced_tokens += filed.tokens
        self._resting.set(seq.request_id, seq.retry_at)

    def remove(self, seq: Sequence) -> None:
        """It does not wait any more."""
        filed = self._filed.pop(seq.request_id)
        self.waiting.remove(seq)
        if not seq.starves:
            self.hopeful.remove(seq)
        self.starvation.remove(seq, filed.size)
        if filed.resumes:
            self.resuming.remove(seq)
        else:
            self.unplaced_blocks -= filed.size
            self.unplaced_tokens -= filed.tokens
        self._resting.cancel(seq.request_id)
        if filed.ready:
            self._unready(filed)

    # --- by admission

    def look(self, now: float) -> None:
        """Let time pass: some have aged, some may try again."""
        for request_id in self._unseen:
            self._ageing.set(request_id, now + AGED_S)
        self._young.update(self._unseen)
        self._unseen.clear()
        for request_id in self._ageing.take_due(now):
            self._age(self._young.pop(request_id))
        for request_id in self._resting.take_due(now):
            self._rested(self._filed[request_id])

    def wake(self, seq: Sequence) -> None:
        """One that holds nothing may try now."""
        filed = self._filed[seq.request_id]
        if not filed.ready:
            self._resting.cancel(seq.request_id)
            self._make_ready(filed)

    @property
    def num_starving(self) -> int:
        return len(self.waiting) - len(self.hopeful)

    @property
    def starving(self) -> Sequence | None:
        """One that holds KV in vain, for the live instances cannot hold it."""
        return next((seq for seq in self.resuming if seq.starves), None)

    @property
    def next_ready(self) -> Sequence | None:
        """The oldest that holds nothing and may try."""
        return self._ready.oldest

    def next_fitting(self, num_blocks: int) -> Sequence | None:
        """The oldest that holds nothing, may try, and takes so many rBlocks at most."""
        first = self._ready.oldest
        if first is None or self._filed[first.request_id].size <= num_blocks:
            return first
        best: Sequence | None = None
        for size in self._ready_sizes:
            if size > num_blocks:
                break
            oldest = self._ready_by_size[size].oldest
            assert oldest is not None
            if best is None or oldest.age < best.age:
                best = oldest
        return best

    def fitting(self, num_blocks: int) -> Iterator[Sequence]:
        """All that hold nothing, may try, and take so many rBlocks at most, oldest first."""
        sizes = self._ready_sizes[: bisect_right(self._ready_sizes, num_blocks)]
        return merge(*(self._ready_by_size[size] for size in sizes), key=lambda seq: seq.age)

    def next_larger(self, num_blocks: int) -> Sequence | None:
        """The oldest that holds nothing, may try, and takes more rBlocks."""
        sizes = self._ready_sizes[bisect_right(self._ready_sizes, num_blocks) :]
        oldest = [seq for size in sizes if (seq := self._ready_by_size[size].oldest) is not None]
        return min(oldest, key=lambda seq: seq.age, default=None)

    def is_ready(self, seq: Sequence) -> bool:
        """Whether it waits, holds nothing and may try."""
        filed = self._filed.get(seq.request_id)
        return filed is not None and filed.ready

    def next_deadline(self) -> float:
        """When somebody has aged, may try again, or has starved for too long."""
        return min(self._ageing.next_at(), self._resting.next_at(), self.starvation.next_deadline())

    def validate(self) -> None:
        """The indices say of each what is true of it."""
        assert all(request_id in self._ageing for request_id in self._young)
        assert not any(seq.starves for seq in self.aged)
        assert all(seq.starves for seq in self._aged_starving.values())
        self._resting.validate()
        self._ageing.validate()
        self.starvation.validate()
        if not self._filed:
            kept: tuple[Sized, ...] = (
                self.waiting, self.resuming, self.hopeful, self._ready, self._ready_sizes, self._ready_by_size
            )  # fmt: skip
            assert not any(map(len, kept)) and self.unplaced_blocks == self.unplaced_tokens == 0
            return
        filed_all = self._filed.values()
        for filed in filed_all:
            seq = filed.seq
            assert (filed.size, filed.resumes) == (seq.size_blocks, seq.placement.holds_kv), f"{filed} is off"
            rests = seq.request_id in self._resting
            assert filed.ready == (not rests and not filed.resumes and not seq.starves), f"{seq.request_id} is lost"
        assert set(self.waiting) == {filed.seq for filed in filed_all}
        assert set(self.hopeful) == {filed.seq for filed in filed_all if not filed.seq.starves}
        assert set(self.resuming) == {filed.seq for filed in filed_all if filed.resumes}
        ready = [filed for filed in filed_all if filed.ready]
        assert set(self._ready) == {filed.seq for filed in ready}
        assert self._ready_sizes == sorted({filed.size for filed in ready})
        by_size = {size: {filed.seq for filed in ready if filed.size == size} for size in self._ready_sizes}
        assert {size: set(seqs) for size, seqs in self._ready_by_size.items()} == by_size
        unplaced = [filed for filed in filed_all if not filed.resumes]
        assert self.unplaced_blocks == sum(filed.size for filed in unplaced)
        assert self.unplaced_tokens == sum(len(filed.seq.request.tokens) for filed in unplaced)

    def _age(self, seq: Sequence) -> None:
        if seq.starves:
            self._aged_starving[seq.request_id] = seq
        else:
            self.aged.add(seq)

    def _rested(self, filed: Filed) -> None:
        if not filed.resumes and not filed.seq.starves:
            self._make_ready(filed)

    def _refile(self, seq: Sequence) -> None:
        """It starves, and did not, or the other way round: nobody waits behind what cannot begin."""
        filed = self._filed[seq.request_id]
        if seq.starves:
            self.hopeful.remove(seq)
            if filed.ready:
                self._unready(filed)
            if seq in self.aged:
                self.aged.remove(seq)
                self._age(seq)
            return
        self.hopeful.add(seq)
        if self._aged_starving.pop(seq.request_id, None) is not None:
            self._age(seq)
        if seq.request_id not in self._resting:
            self._rested(filed)

    def _make_ready(self, filed: Filed) -> None:
        filed.ready = True
        self._ready.add(filed.seq)
        if filed.size not in self._ready_by_size:
            self._ready_by_size[filed.size] = AgeOrder()
            insort(self._ready_sizes, filed.size)
        self._ready_by_size[filed.size].add(filed.seq)

    def _unready(self, filed: Filed) -> None:
        filed.ready = False
        self._ready.remove(filed.seq)
        same = self._ready_by_size[filed.size]
        same.remove(filed.seq)
        if not same:
            del self._ready_by_size[filed.size]
            del self._ready_sizes[bisect_left(self._ready_sizes, filed.size)]
