"""Who gets memory next: admission, growth, making room, preemption (docs/design.md, "Admission").

Admission reserves every block of a prompt, local and lent, or holds none and waits. A sequence that lost a span is
admitted the same way for what it lacks. When a running sequence needs a slot and there is none, full blocks of the
one that holds most are moved out; if nobody lends, the one that costs least to do again is preempted. Growth is
foreseen: nobody begins before there is memory for what it and those beside it are expected to generate.
"""

from __future__ import annotations

import math
from random import Random

from distkv import events
from distkv.control.blocks import SlotState
from distkv.control.loan.borrow import Borrow, Purpose
from distkv.control.loan.debts import DebtBook
from distkv.control.request.block import Block
from distkv.control.request.sequence import SeqState, Sequence
from distkv.control.rmanager.state import RManagerState
from distkv.control.schedule.passing import Passing
from distkv.control.schedule.victims import Victim, cheapest
from distkv.control.timers import Timers

FIRST_RETRY_S = 0.05
LONGEST_RETRY_S = 1.0
LEAST_MOVE_BLOCKS = 4
SOON_TOKENS = 4
GIVE_UP_RETRIES = 8
REDO_S = 0.002
"""Seconds that a sequence stands still for each token it would compute again, before it gives way."""
FORESEEN_S = 10.0
"""For so long a request waits for memory to grow into, besides what its prompt needs."""


class Admission:
    """Decides which sequences of one instance hold which blocks."""

    def __init__(self, state: RManagerState, debts: DebtBook, entropy: Random) -> None:
        self._state = state
        self._debts = debts
        self._entropy = entropy
        self._relieve_at = 0.0
        self._relieve_again: Timers[str] = Timers()
        self._relieve_retries = 0
        self._give_way_at = math.inf
        self._passing = Passing()
        self._queue = state.sequences.queue
        self._short: tuple[tuple[int, int, int, int], bool] = ((-1, -1, -1, -1), False)

    def admit(self, now: float) -> None:
        """Start or resume what there is memory for; what holds some already goes first, so that it ends.

        An aged request is not overtaken by younger ones, also while it borrows. Those of them that wait as well and
        hold memory give it up for it.
        """
        self._queue.look(now)
        self._state.earmarks.look(now)
        self._resume(now)
        self._wake_oldest(now)
        self._begin(now)

    def _resume(self, now: float) -> None:
        aged: Sequence | None = None
        for seq in list(self._queue.resuming):
            if self._batch_is_full:
                return
            if seq not in self._queue.resuming or (aged is not None and seq.age > aged.age):
                continue
            if now >= seq.retry_at and not self._acquire(seq, now) and seq in self._queue.aged:
                self._make_way(seq, now)
            if seq in self._queue.aged:  # which it is no longer once it runs
                aged = seq

    def _wake_oldest(self, now: float) -> None:
        """The pause after a borrow that failed is not for what fits here by now."""
        seq = self._queue.waiting.oldest
        if seq is None or not seq.retries or seq in self._queue.resuming:
            return
        if self.unplaced_blocks(seq) + self._growth(seq, now) <= self._room():
            self._queue.wake(seq)

    def _begin(self, now: float) -> None:
        """Oldest first, all that fit here, and the oldest of those that do not as far as it can borrow. Those that fit
        go by an aged one, and into memory that is kept for a peer's, until they have had as much as that needs."""
        while not self._batch_is_full and (room := self._room()) > 0:
            aged, first = self._queue.aged.oldest, self._queue.next_ready
            if first is None:
                break
            passes = aged is not None and first.age > aged.age
            seq = first if self._may_borrow and not passes else self._queue.next_fitting(room)
            if seq is None:
                break
            passed = [self._passing] if aged is not None and seq.age > aged.age else []
            if aged is not None:
                self._passing.look(aged.request_id, aged.size_blocks)
            asking = self._state.settings.instance_id, seq.request_id
            kept = self._state.earmarks.kept_from(asking, seq.request.arrival, now)
            if kept and room - seq.size_blocks < kept:
                passed.append(self._state.earmarks.passing)
            if not all(passing.may_pass(seq.size_blocks) for passing in passed):
                break
            if not self._acquire(seq, now):
                break
            for passing in passed:
                passing.passed(seq.size_blocks)
        aged = self._queue.aged.oldest
        if aged is not None and not self._batch_is_full and self._queue.is_ready(aged):
            self._make_way(aged, now)

    def _make_way(self, seq: Sequence, now: float) -> None:
        youngest = self._queue.resuming.youngest
        if youngest is not None and youngest.age > seq.age:
            self._preempt(youngest, now)

    @property
    def _batch_is_full(self) -> bool:
        return len(self._state.running()) >= self._state.settings.max_num_seqs

    @property
    def _may_borrow(self) -> bool:
        return self._state.has_creditors and not self._state.borrower.is_borrowing(Purpose.PLACE)

    def _room(self, seq: Sequence | None = None) -> int:
        """Slots for who is admitted next: all free ones but those that the running ones are expected to grow into; one
        for each of them when `seq` resumes, for what it holds is of use to nobody else."""
        is_resuming = seq is not None and seq.placement.holds_kv
        keep = len(self._state.running()) if is_resuming else self._state.growing_blocks()
        return max(0, self._state.pool.num_free - keep)

    def _growth(self, seq: Sequence, now: float) -> int:
        """rBlocks that must be to be had for its growth before it is admitted. None for one that resumes, has been here
        for FORESEEN_S, or would be alone and has nobody to ask."""
        state = self._state
        is_alone = not state.running() and not state.has_creditors
        if seq.placement.holds_kv or is_alone or now - seq.request.arrival >= FORESEEN_S:
            return 0
        return min(state.growth(seq), max(0, state.cluster_blocks() - seq.size_blocks))

    def lacking(self, now: float) -> tuple[Sequence, int] | None:
        """The request that waits longest, also while it borrows, and how many rBlocks it needs beyond those that are
        free for it."""
        sequences = self._state.sequences
        not_running = [seq for seq in (sequences.acquiring.oldest, self._queue.waiting.oldest) if seq is not None]
        if not not_running:
            return None
        oldest = min(not_running, key=lambda seq: seq.age)
        return oldest, self.unplaced_blocks(oldest) + self._growth(oldest, now) - self._room(oldest)

    def waiting_blocks(self) -> int:
        """rBlocks that waiting requests need."""
        return self._queue.unplaced_blocks + sum(self.unplaced_blocks(seq) for seq in self._queue.resuming)

    def next_deadline(self) -> float:
        """When somebody may try again, or is not overtaken any more."""
        return min(self._queue.next_deadline(), self._relieve_again.next_at(), self._state.earmarks.next_deadline())

    def unplaced_blocks(self, seq: Sequence) -> int:
        """Blocks it needs a place for before it can go on, beyond the slots it holds or will soon have back."""
        seq.placement.cover(len(seq.request.tokens))
        wanted = seq.placement.counts.unplaced + seq.placement.ends_in_transit
        return max(0, wanted - len(seq.placement.unassigned_slots) - self._state.returning(seq))

    def make_room(self, now: float) -> None:
        """Move blocks out when slots run short; let one give way when a sequence stands still for want of one."""
        state = self._state
        self._relieve_again.take_due(now)
        stalled = self._stalled()
        if not stalled:
            self._give_way_at = math.inf
        if not (stalled or self._short_soon() or self._starving()) or self._relieving():
            return
        room_is_coming = state.has_deferred_slots or any(s.placement.has_outgoing for s in state.running())
        if room_is_coming and not stalled:
            return
        most = max(LEAST_MOVE_BLOCKS, len(state.running()))
        if self._use_spare(most):
            return
        may_relieve = now >= self._relieve_at and state.has_creditors
        victim = self._fullest() if may_relieve else None
        if victim is not None:
            wanted = min(victim.placement.counts.movable, most)
            state.borrower.start(victim, Purpose.RELIEVE, wanted, now)
            return
        # What a sequence has in flight may fill blocks that can leave, or end a request: that comes first.
        stuck = any(not state.scheduler.has_in_flight(s) for s in stalled)
        if stuck and not room_is_coming and (now >= self._relieve_at or not state.has_creditors):
            self._give_way(now)

    def on_borrowed(self, borrow: Borrow, now: float) -> None:
        """A borrow is over: use its grants, or give them back."""
        seq = borrow.seq
        if self._state.sequences.get(seq.request_id) is not seq:
            self._debts.give_back(borrow.grants)
        elif borrow.purpose is Purpose.PLACE:
            self._place(seq, borrow, now)
        elif borrow.purpose is Purpose.RELIEVE:
            blocks = seq.placement.movable() if seq.state is SeqState.RUNNING else []
            self._hand_over(seq, borrow, blocks)
            if borrow.grants and blocks:
                self._relieve_retries = 0
                return
            self._relieve_at = now + self._backoff(self._relieve_retries)
            self._relieve_again.set("", self._relieve_at)
            self._relieve_retries += 1
            if self._stalled():
                self._give_way(now)
        else:
            self._hand_over(seq, borrow, seq.placement.at_creditors(borrow.exclude))

    def restart(self, seq: Sequence, now: float) -> None:
        """Take everything from a sequence; it starts over from its tokens when there is memory again."""
        state = self._state
        state.scheduler.take_back(seq)
        self._debts.give_back(state.borrower.cancel(seq))
        self._debts.drop(seq, now)
        state.sequences.wait(seq, now)

    def check_places(self, seq: Sequence) -> None:
        """After a loss: no more steps for a sequence whose lost blocks have no place, until they do; and one that waits
        with nothing left keeps no slots from others."""
        if seq.state is SeqState.WAITING and not seq.placement.holds_kv:
            self._state.trim(seq)
        if seq.state is not SeqState.RUNNING or not seq.placement.take_unsettled():
            return
        if not self._state.scheduler.has_in_flight(seq) and (slots := seq.vacate()):
            self._state.defer(seq, slots)
        if self.unplaced_blocks(seq):
            for debt in list(seq.placement.debts):
                self._debts.release_unused(seq, debt)
            self._state.sequences.wait(seq, 0.0)
            self._state.trim(seq)

    # --- admission

    def _acquire(self, seq: Sequence, now: float) -> bool:
        """Reserve what the sequence lacks or begin to borrow it; false if it must wait."""
        state = self._state
        need, room, growth = self.unplaced_blocks(seq), self._room(seq), self._growth(seq, now)
        if need + growth <= room:
            self._take_local(seq, need)
            self._start(seq)
            return True
        if not self._may_borrow:
            return False
        local = min(need, max(room - growth, min(1, room)))
        self._take_local(seq, local)
        staging = self._missing_staging(seq)
        if staging and not seq.placement.counts.movable:
            return False
        remote = min(need - local, seq.placement.counts.unplaced) + staging
        state.sequences.acquire(seq)
        state.borrower.start(seq, Purpose.PLACE, max(remote, need + growth - room), now)
        return True

    def _missing_staging(self, seq: Sequence) -> int:
        """1 if a full block must move out first, so that there is a slot to compute the borrowed ones in."""
        return 0 if seq.placement.unassigned_slots or self._state.returning(seq) else 1

    def _take_local(self, seq: Sequence, count: int) -> None:
        slots = self._state.pool.allocate(count, SlotState.LOCAL) if count else []
        assert slots is not None
        seq.placement.add_slots(slots)

    def _place(self, seq: Sequence, borrow: Borrow, now: float) -> None:
        if seq.state is not SeqState.ACQUIRING:
            self._debts.give_back(borrow.grants)
            return
        unplaced = seq.placement.unplaced()
        remote = min(self.unplaced_blocks(seq), len(unplaced))
        extra = seq.placement.movable()[: self._missing_staging(seq)]
        least = max(remote + self._missing_staging(seq), borrow.num_blocks if self._growth(seq, now) else 0)
        if borrow.granted >= least and len(extra) == self._missing_staging(seq):
            blocks = extra + unplaced[:remote]
            self._hand_over(seq, borrow, blocks, least - len(blocks))
            self._start(seq)
            return
        self._debts.give_back(borrow.grants)
        self._state.pool.free(seq.placement.take_unassigned(), SlotState.LOCAL)
        retries = seq.retries + 1
        if (
            seq.placement.blocks
            and retries >= GIVE_UP_RETRIES
            and (seq.placement.num_local_slots or seq.placement.debts)
        ):
            # Two that each hold what the other lacks would wait for ever.
            self.restart(seq, now)
        self._state.sequences.wait(seq, now + self._backoff(retries), retries)

    def _start(self, seq: Sequence) -> None:
        self._state.sequences.run(seq)
        seq.placement.new_version()
        self._state.trim(seq)

    def _hand_over(self, seq: Sequence, borrow: Borrow, blocks: list[Block], spare: int = 0) -> None:
        """Let blocks go to the granted spans, in order, and keep so many positions for blocks still to come; what is
        left goes back."""
        rest = list(blocks)
        for debt in borrow.grants:
            if not rest and spare <= 0:
                self._debts.give_back([debt])
                continue
            here, rest = rest[: debt.capacity], rest[debt.capacity :]
            keep = max(0, min(spare, debt.capacity - len(here)))
            spare -= keep
            seq.placement.borrow(debt, here)
            self._debts.release_unused(seq, debt, keep)
        self._state.sequences.touch(seq)

    # --- making room

    def _stalled(self) -> list[Sequence]:
        """Running sequences that stand still for want of a slot, with none free or coming back."""
        state = self._state
        if state.pool.num_free:
            return []
        return [s for s in state.scheduler.stalled if s.state is SeqState.RUNNING and not state.returning(s)]

    def _short_soon(self) -> bool:
        """Whether fewer slots are free than running sequences need within a few tokens; looked at when a step was
        planned or answered, or slots or the batch changed."""
        state = self._state
        if state.pool.num_free >= len(state.running()):
            return False
        steps = state.scheduler.last_step_id, state.scheduler.last_done_id
        basis = (*steps, state.pool.changes, state.sequences.batch_changes)
        if self._short[0] != basis:
            self._short = basis, self._look_short_soon()
        return self._short[1]

    def _look_short_soon(self) -> bool:
        block_tokens = self._state.settings.block_tokens
        soon = [
            s
            for s in self._state.running()
            if len(s.placement.blocks) * block_tokens - s.length < SOON_TOKENS
            and not s.placement.unassigned_slots
            and s.can_grow
        ]
        return self._state.pool.num_free < len(soon)

    def _starving(self) -> bool:
        """Whether the oldest waiting request has not even the one slot that it needs to use borrowed memory."""
        state = self._state
        if state.pool.num_free > len(state.running()):
            return False
        oldest = self._queue.waiting.oldest
        return oldest is not None and not oldest.placement.unassigned_slots and self.unplaced_blocks(oldest) > 0

    def _use_spare(self, most: int) -> bool:
        """Have full blocks of a sequence go to what it keeps at creditors; false if none has both."""
        for seq in self._state.running():
            if seq.placement.counts.movable and (spare := seq.placement.num_spare):
                blocks = seq.placement.movable()[: min(most, spare)]
                for debt in seq.placement.debts:
                    here, blocks = blocks[: debt.num_spare], blocks[debt.num_spare :]
                    seq.placement.borrow(debt, here)
                self._state.sequences.touch(seq)
                return True
        return False

    def _relieving(self) -> bool:
        return self._state.borrower.is_borrowing(Purpose.RELIEVE)

    def _fullest(self) -> Sequence | None:
        running = [s for s in self._state.running() if s.placement.counts.movable]
        return max(running, key=lambda s: (s.placement.counts.movable, s.age), default=None)

    def _give_way(self, now: float) -> None:
        """Preempt the one that costs least to do again, after a while that is the longer the more that is: of several
        instances that stand still for each other's memory the one with the least to lose gives way."""
        victims = [
            Victim(seq.request_id, seq.age, seq.num_computed, seq.placement.num_local_slots > 0)
            for seq in self._state.running()
        ]
        victim = cheapest(victims)
        if victim is None:
            return
        if self._state.has_creditors and self._give_way_at == math.inf:
            pause_s = min(LONGEST_RETRY_S, REDO_S * victim.redo_tokens) * (0.5 + self._entropy.random())
            self._give_way_at = now + pause_s
            self._relieve_again.set("give way", self._give_way_at)
        elif not self._state.has_creditors or now >= self._give_way_at:
            self._give_way_at = math.inf
            self._preempt(self._state.sequences[victim.request_id], now)

    def _preempt(self, seq: Sequence, now: float) -> None:
        self._state.counters.preemptions += 1
        self._state.publish(events.Preempted(request_id=seq.request_id, num_tokens=len(seq.request.tokens)))
        self.restart(seq, now)
        self._state.sequences.wait(seq, now + self._backoff(0))

    def _backoff(self, retries: int) -> float:
        """Doubling, with jitter, so that instances that compete for the same blocks do not do so for ever."""
        return min(LONGEST_RETRY_S, FIRST_RETRY_S * 2.0 ** min(retries, 10)) * (0.5 + self._entropy.random())
