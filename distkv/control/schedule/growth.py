"""How much longer an output is expected to get, by the outputs that have ended here, and what memory that takes."""

from __future__ import annotations

from bisect import bisect_right, insort
from collections import deque
from itertools import accumulate
from math import ceil

from distkv.control.request.sequence import Sequence
from distkv.control.schedule.scheduler import Scheduler
from distkv.control.schedule.sequences import Sequences
from distkv.types import MAX_INT

SEEN = 64
"""Outputs that are remembered, the newest ones."""
UNSEEN_TOKENS = 128
"""What an output is expected to grow by while nothing longer was seen."""
DEAR = 0.15
"""Computing the tokens of a preempted sequence again is dear if it takes this share of the time of its output."""
LEAST_KEPT = 0.5
"""Of what sequences need at once, what is kept for them where computing again is cheap."""


class OutputLengths:
    """Lengths of the newest outputs, in tokens. A question costs O(log SEEN)."""

    def __init__(self) -> None:
        self._newest: deque[int] = deque()
        self._sorted: list[int] = []
        self._sums = [0]
        self.changes = 0

    def ended(self, num_tokens: int) -> None:
        """An output ended by itself, or at its limit, after so many tokens."""
        self._newest.append(num_tokens)
        insort(self._sorted, num_tokens)
        if len(self._newest) > SEEN:
            self._sorted.remove(self._newest.popleft())
        self._sums = [0, *accumulate(self._sorted)]
        self.changes += 1

    def still_to_come(self, generated: int, max_tokens: int) -> int:
        """Tokens that an output of so many is expected to get yet: it ends as those did that got longer, on average,
        and never above `max_tokens`."""
        first = bisect_right(self._sorted, generated)
        if longer := len(self._sorted) - first:
            expected = -(-(self._sums[-1] - self._sums[first]) // longer)
        else:
            expected = generated + UNSEEN_TOKENS
        return max(0, min(expected, max_tokens) - generated)


def blocks_to_come(num_tokens: int, held_blocks: int, still_to_come: int, block_tokens: int) -> int:
    """rBlocks that a sequence of `num_tokens`, which has `held_blocks` now, will need besides; the KV of its last token
    is never needed."""
    return max(0, -(-(num_tokens + still_to_come - 1) // block_tokens) - held_blocks)


def most_at_once(num_blocks: int, num_sequences: int) -> int:
    """rBlocks that so many sequences need besides at once at most, if they are expected to need `num_blocks` in all
    until their ends, one at least for each.

    What one has grown by is there for the others once it has ended. If n sequences grow alike and end one after the
    other at equal distances, they need (n + 1)² / 4n at once of what the last one grows by, of (n + 1) / 2 in all.
    """
    return max(num_sequences, -(-num_blocks * (num_sequences + 1) // max(1, 2 * num_sequences)))


def share_kept(again_s: float, output_s: float) -> float:
    """Of what the running sequences are expected to need at once, what is kept for them; whoever waits gets the rest,
    and should all need it after all, one of them is preempted. again_s: what computing its tokens again takes.
    output_s: what its output takes. All is kept while one of these is not known, and is 0."""
    if not again_s or not output_s:
        return 1.0
    return min(1.0, max(LEAST_KEPT, again_s / output_s / DEAR))


class Growing:
    """Looked at when a step was planned or answered, and for one that joins the batch when it does. The share that is
    kept changes only with the batch and with outputs that end: while all decode on, nobody who waits gets room.

    outputs: the lengths that outputs had.
    """

    def __init__(self, sequences: Sequences, scheduler: Scheduler) -> None:
        self.outputs = OutputLengths()
        self._sequences, self._scheduler = sequences, scheduler
        self._basis: tuple[int, int, int] = (-1, -1, -1)
        self._row_of: dict[Sequence, int] = {}
        self._growing: list[int] = []
        self._dues: list[int] = []
        self._lengths: list[int] = []
        self._sum = self._due = self._tokens = 0
        self._share = 1.0

    def growth(self, seq: Sequence) -> int:
        """rBlocks that a sequence is expected to need besides those of its tokens now."""
        request, placement = seq.request, seq.placement
        length, held, num_prompt = len(request.tokens) + seq.pending, len(placement.blocks), request.prompt_tokens
        if held * placement.block_tokens < length:
            held = seq.num_blocks
        to_come = self.outputs.still_to_come(length - num_prompt, seq.max_length - num_prompt)
        return blocks_to_come(length, held, to_come, placement.block_tokens)

    def blocks(self) -> int:
        """Slots that are kept for what the running sequences are expected to need yet at once, besides what they keep
        at creditors."""
        self._look()
        return self._kept(self._sum, len(self._row_of))

    def blocks_with(self, seq: Sequence) -> int:
        """How many more these are once a sequence that waits runs too."""
        now = self.blocks()
        return max(0, self._kept(self._sum + self.growth(seq), len(self._row_of) + 1) - now)

    def due(self) -> int:
        """Slots that the next step takes."""
        self._look()
        return self._due

    def _kept(self, num_blocks: int, num_sequences: int) -> int:
        return max(num_sequences, ceil(self._share * most_at_once(num_blocks, num_sequences)))

    def _look(self) -> None:
        basis = self._scheduler.last_step_id, self._scheduler.last_done_id, self.outputs.changes
        changed = self._sequences.take_batch_changes()
        is_other = bool(changed) or self.outputs.changes != self._basis[-1]
        if self._basis != basis:
            self._basis, changed = basis, []
            self._count_all()
        for seq in changed:
            if (row := self._row_of.pop(seq, None)) is not None:
                self._sum -= self._growing[row]
                self._due -= self._dues[row]
                self._tokens -= self._lengths[row]
            if seq in self._sequences.running:
                self._count(seq)
        if is_other:
            times, running = self._scheduler.times, len(self._row_of)
            again_s = times.prompt_token_s * self._tokens / max(1, running)
            self._share = share_kept(again_s, times.decode_s(running) * self.outputs.still_to_come(0, MAX_INT))

    def _count_all(self) -> None:
        running = list(self._sequences.running)
        self._row_of = dict(zip(running, range(len(running)), strict=True))
        self._growing = [self._growing_of(seq) for seq in running]
        self._dues = [_due_of(seq) for seq in running]
        self._lengths = [len(seq.request.tokens) for seq in running]
        self._sum, self._due, self._tokens = sum(self._growing), sum(self._dues), sum(self._lengths)

    def _count(self, seq: Sequence) -> None:
        growing, due, length = self._growing_of(seq), _due_of(seq), len(seq.request.tokens)
        self._row_of[seq] = len(self._growing)
        self._growing.append(growing)
        self._dues.append(due)
        self._lengths.append(length)
        self._sum += growing
        self._due += due
        self._tokens += length

    def _growing_of(self, seq: Sequence) -> int:
        growing = self.growth(seq)
        if seq.placement.debts:
            growing -= seq.placement.num_spare
        return growing if growing > 1 else 1


def _due_of(seq: Sequence) -> int:
    """Slots that the next step takes for it."""
    placement = seq.placement
    due = placement.counts.unplaced
    return max(0, due - len(placement.unassigned_slots)) if due else 0
