"""Who gets memory next, of those that do not run (docs/design.md, "Admission").

Admission reserves every block of a prompt, local and lent, or holds none and waits. A sequence that lost a span is
admitted the same way for what it lacks. Growth is foreseen: nobody begins before there is memory for what it and those
beside it are expected to generate.
"""

from __future__ import annotations

from distkv.control.blocks import SlotState
from distkv.control.loan.borrow import Borrow, Purpose
from distkv.control.loan.debts import DebtBook
from distkv.control.request.sequence import SeqState, Sequence
from distkv.control.rmanager.state import RManagerState
from distkv.control.schedule.holdings import Holdings
from distkv.control.schedule.making_room import MakingRoom
from distkv.control.schedule.passing import Passing

GIVE_UP_RETRIES = 8
FORESEEN_S = 10.0
"""For so long a request waits for memory to grow into, besides what its prompt needs."""


class Admission:
    """Decides which sequences of one instance begin, or go on. making_room: takes what was borrowed for that."""

    def __init__(self, state: RManagerState, debts: DebtBook, holdings: Holdings, making_room: MakingRoom) -> None:
        self._state = state
        self._debts = debts
        self._holdings = holdings
        self._making_room = making_room
        self._passing = Passing()
        self._queue = state.sequences.queue

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
        if self._holdings.unplaced_blocks(seq) + self._growth(seq, now) <= self._room():
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
            self._holdings.preempt(youngest, now)

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
        return oldest, self._holdings.unplaced_blocks(oldest) + self._growth(oldest, now) - self._room(oldest)

    def waiting_blocks(self) -> int:
        """rBlocks that waiting requests need."""
        return self._queue.unplaced_blocks + sum(self._holdings.unplaced_blocks(seq) for seq in self._queue.resuming)

    def next_deadline(self) -> float:
        """When somebody may try again, or is not overtaken any more."""
        return min(self._queue.next_deadline(), self._state.earmarks.next_deadline())

    def on_borrowed(self, borrow: Borrow, now: float) -> None:
        """A borrow is over: use its grants, or give them back."""
        seq = borrow.seq
        if self._state.sequences.get(seq.request_id) is not seq:
            self._debts.give_back(borrow.grants)
        elif borrow.purpose is Purpose.PLACE:
            self._place(seq, borrow, now)
        elif borrow.purpose is Purpose.RELIEVE:
            self._making_room.on_borrowed(borrow, now)
        else:
            self._holdings.hand_over(seq, borrow, seq.placement.at_creditors(borrow.exclude))

    # --- admission

    def _acquire(self, seq: Sequence, now: float) -> bool:
        """Reserve what the sequence lacks or begin to borrow it; false if it must wait."""
        state = self._state
        need, room, growth = self._holdings.unplaced_blocks(seq), self._room(seq), self._growth(seq, now)
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
        remote = min(self._holdings.unplaced_blocks(seq), len(unplaced))
        extra = seq.placement.movable()[: self._missing_staging(seq)]
        least = max(remote + self._missing_staging(seq), borrow.num_blocks if self._growth(seq, now) else 0)
        if borrow.granted >= least and len(extra) == self._missing_staging(seq):
            blocks = extra + unplaced[:remote]
            self._holdings.hand_over(seq, borrow, blocks, least - len(blocks))
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
            self._holdings.restart(seq, now)
        self._state.sequences.wait(seq, now + self._holdings.backoff(retries), retries)

    def _start(self, seq: Sequence) -> None:
        self._state.sequences.run(seq)
        seq.placement.new_version()
        self._state.trim(seq)
