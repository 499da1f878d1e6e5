"""Who gets memory next, of those that do not run (docs/design.md, "Admission").

Admission reserves every block of a prompt, local and lent, or holds none and waits. A sequence that lost a span is
admitted the same way for what it lacks. Growth is foreseen: nobody begins before there is memory for what it and those
beside it are expected to generate.
"""

from __future__ import annotations

from itertools import islice

from distkv.control.blocks import SlotState
from distkv.control.loan.creditor.creditor import MAX_SHARERS
from distkv.control.loan.creditor.reclaimer import NONE_LACKS, Lack
from distkv.control.loan.debtor.borrow import Borrow, Purpose
from distkv.control.loan.debtor.debts import DebtBook
from distkv.control.request.sequence import SeqState, Sequence
from distkv.control.rmanager.state import RManagerState
from distkv.control.schedule.admission.borrow_choice import BorrowChoice
from distkv.control.schedule.admission.demand import Demand
from distkv.control.schedule.admission.passing import Passing
from distkv.control.schedule.holdings import Holdings
from distkv.control.schedule.making_room import MakingRoom

GIVE_UP_RETRIES = 8
MOST_LOOKED_AT = 8
"""Of those whose prompts fit, so many may have too little memory to grow into before nobody begins."""

GAVE_BACK = "what it lacked was not to be had, and others may wait for what it held"


class Admission:
    """Decides which sequences of one instance begin, or go on. making_room: takes what was borrowed for that."""

    def __init__(
        self, state: RManagerState, debts: DebtBook, holdings: Holdings, demand: Demand, making_room: MakingRoom
    ) -> None:
        self._state = state
        self._debts = debts
        self._holdings = holdings
        self._demand = demand
        self._choice = BorrowChoice(state, demand)
        self._making_room = making_room
        self._passing = Passing()
        self._queue = state.sequences.queue
        self._tried: tuple[tuple[float, str], int] = (0.0, ""), 0  # who last tried to borrow; the room it saw here

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
        self._state.small_ones.look(now)

    def _resume(self, now: float) -> None:
        aged: Sequence | None = None
        for seq in list(self._queue.resuming):
            if self._state.is_batch_full:
                return
            if seq not in self._queue.resuming or (aged is not None and seq.age > aged.age):
                continue
            if now >= seq.retry_at and not self._acquire(seq, now) and seq in self._queue.aged:
                self._make_way(seq, now)
            if seq in self._queue.aged:  # which it is no longer once it runs
                aged = seq

    def _wake_oldest(self, now: float) -> None:
        """The pause after a borrow that failed is not for what fits here by now, and is short once there is more room
        here than it saw then."""
        seq = self._queue.hopeful.oldest
        if seq is None or not seq.retries or seq in self._queue.resuming:
            return
        needed, room = self._holdings.unplaced_blocks(seq) + self._demand.growth(seq, now), self._demand.room()
        if needed <= room:
            self._queue.wake(seq)
        elif self._sees_more(seq, needed, room):
            self._tried = seq.age, room
            self._try_soon(seq, now)

    def _sees_more(self, seq: Sequence, needed: int, room: int) -> bool:
        """Whether there is more room here than when it tried to borrow, by a share of what it lacked of this pool: the
        share that creditors keep for it."""
        tried, seen = self._tried
        lacked = max(1, min(needed, self._state.settings.num_blocks) - seen)
        return seq.age == tried and (room - seen) * (1 + MAX_SHARERS) >= lacked

    def _try_soon(self, seq: Sequence, now: float) -> None:
        """Memory has come free, and more of it may within a moment: who ended had it in several pools. One that holds
        KV that others may wait for gives that up after as many tries as ever."""
        retries = seq.retries if seq.placement.holds_kv else 1
        self._state.sequences.wait(seq, min(seq.retry_at, now + self._holdings.backoff(0)), retries)

    def _begin(self, now: float) -> None:
        """Oldest first, all that fit here, and the oldest of those that do not, and are to borrow, as far as it can.
        Those that fit go by an aged one, and into memory that is kept for a peer's, until they have had as much as that
        needs."""
        while not self._state.is_batch_full and (room := self._demand.room()) > 0:
            aged = self._queue.aged.oldest
            if aged is not None:
                self._passing.look(aged.request_id, aged.size_blocks)
            seq = self._next_to_borrow(aged, room, now) or self._next_fitting(room, now)
            if seq is None:
                break
            passed = [self._passing] if aged is not None and seq.age > aged.age else []
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
        if aged is not None and not self._state.is_batch_full and self._queue.is_ready(aged):
            self._make_way(aged, now)

    def _next_to_borrow(self, aged: Sequence | None, room: int, now: float) -> Sequence | None:
        """The oldest, if it fits here or is to borrow; else the oldest that is larger than this pool. Nobody borrows
        before an aged one, nor while another one does."""
        if not self._may_borrow:
            return None
        for seq in (self._queue.next_ready, self._queue.next_larger(self._state.settings.num_blocks)):
            if seq is not None and (aged is None or seq.age <= aged.age):
                if self._holdings.unplaced_blocks(seq) + self._demand.growth(seq, now) <= room:
                    return seq
                if self._choice.is_to_borrow(seq, now):
                    return None if self._yields(seq, aged, room) else seq
        return None

    def _next_fitting(self, room: int, now: float) -> Sequence | None:
        """The oldest of a few that fits here with what it is expected to grow by; else the oldest whose prompt does."""
        oldest = self._queue.next_fitting(room)
        if oldest is None or oldest.size_blocks + self._demand.growth(oldest, now) <= room:
            return oldest
        others = islice(self._queue.fitting(room), MOST_LOOKED_AT)
        return next((seq for seq in others if seq.size_blocks + self._demand.growth(seq, now) <= room), oldest)

    def _yields(self, seq: Sequence, aged: Sequence | None, room: int) -> bool:
        """Whether one that could wait for memory at home leaves what is free to a younger one that fits."""
        if seq.placement.holds_kv or not self._state.fits_at_home(seq):
            return False
        fitting = self._queue.next_fitting(room)
        return fitting is not None and (aged is None or self._passing.may_pass(fitting.size_blocks))

    def _make_way(self, seq: Sequence, now: float) -> None:
        if (starving := self._queue.starving) is not None:
            self._holdings.preempt(starving, now, f"live instances cannot hold it, and {seq.request_id} waits")
        elif (youngest := self._queue.resuming.youngest) is not None and youngest.age > seq.age:
            self._holdings.preempt(youngest, now, f"{seq.request_id} has waited longer for what it held")

    @property
    def _may_borrow(self) -> bool:
        return self._state.has_creditors and not self._state.borrower.is_borrowing(Purpose.PLACE)

    def lacking(self, now: float) -> Lack:
        """What the request lacks that waits longest, also while it borrows."""
        sequences = self._state.sequences
        not_running = (sequences.acquiring.oldest, self._queue.hopeful.oldest)
        able = [seq for seq in not_running if seq is not None and not seq.starves]
        if not able:
            return NONE_LACKS
        oldest = min(able, key=lambda seq: seq.age)
        lacking = self._demand.short(oldest, now)
        is_lent = lacking > 0 and self._state.loans.num_blocks > 0
        return Lack(oldest, lacking, is_lent and (oldest.retries > 0 or not self._choice.is_to_borrow(oldest, now)))

    @property
    def is_idle(self) -> bool:
        """Whether nobody who waits could begin, or would borrow, while those that run decode on: not even if each of
        these had the slot already that it takes next."""
        state, queue = self._state, self._queue
        if queue.resuming or state.sequences.acquiring:
            return False
        oldest = queue.hopeful.oldest
        if oldest is None:  # nobody, or what the live instances cannot hold
            return True
        if state.loans.num_blocks:
            return False
        room = self._demand.room() + len(state.running())
        needed = self._holdings.unplaced_blocks(oldest)
        if oldest.retries and (needed <= room or self._sees_more(oldest, needed, room)):
            return False
        if self._state.is_batch_full:
            return True
        if queue.next_fitting(room) is not None:
            return False
        may_borrow = (queue.next_ready, queue.next_larger(state.settings.num_blocks)) if self._may_borrow else ()
        return not any(seq is not None and self._choice.may_be_to_borrow(seq) for seq in may_borrow)

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
            blocks = [] if borrow.leaves is None else borrow.leaves.placed()[: borrow.num_blocks]
            self._holdings.hand_over(seq, borrow, blocks)

    def on_vacant(self, creditor_id: str, request_id: str, now: float) -> None:
        """A creditor has memory that it kept for a request: this one is tried again soon, also if the borrow that is
        under way fails."""
        seq = self._state.sequences.get(request_id)
        if seq is None or not seq.retries or not self._state.borrower.may_keep(creditor_id, seq):
            return
        if seq.state is SeqState.WAITING:
            self._try_soon(seq, now)
        elif not seq.placement.holds_kv:
            seq.hope()

    # --- admission

    def _acquire(self, seq: Sequence, now: float) -> bool:
        """Reserve what the sequence lacks or begin to borrow it; false if it must wait."""
        state = self._state
        need, room, growth = self._holdings.unplaced_blocks(seq), self._demand.room(seq), self._demand.growth(seq, now)
        if need + growth <= room:
            self._take_local(seq, need)
            self._start(seq)
            return True
        may_borrow = state.may_be_lent_to(seq) and not state.borrower.is_borrowing(Purpose.PLACE)
        if not may_borrow or not self._choice.is_to_borrow(seq, now):
            return False
        self._tried = seq.age, room
        is_avoidable = not seq.placement.holds_kv and state.fits_at_home(seq)
        kept = state.kept_for_next(now) if is_avoidable else 0
        local = min(need, max(room - growth - kept, min(1, room)))
        self._take_local(seq, local)
        staging = self._missing_staging(seq)
        if staging and not seq.placement.counts.movable:
            return False
        remote = min(need - local, seq.placement.counts.unplaced) + staging
        state.sequences.acquire(seq)
        state.borrower.start(
            seq,
            Purpose.PLACE,
            max(remote, need + growth + kept - room),
            now,
            movable_tokens=state.movable_tokens(seq),
            is_avoidable=is_avoidable,
            stays_near=state.stays_near(seq),
        )
        return True

    def _missing_staging(self, seq: Sequence) -> int:
        """1 if a full block must move out first, so that there is a slot to compute the borrowed ones in."""
        return 0 if seq.placement.unassigned_slots or self._state.deferred.returning(seq) else 1

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
        least = max(remote + self._missing_staging(seq), borrow.num_blocks if self._demand.growth(seq, now) else 0)
        if borrow.granted >= least and len(extra) == self._missing_staging(seq):
            blocks = extra + unplaced[:remote]
            self._state.counters.borrows += 1
            self._state.counters.avoidable_borrows += borrow.is_avoidable
            self._holdings.hand_over(seq, borrow, blocks, least - len(blocks))
            self._start(seq)
            return
        self._debts.give_back(borrow.grants)
        self._state.pool.free(seq.placement.take_unassigned(), SlotState.LOCAL)
        retries = seq.retries + 1
        self._state.histories.note(seq.request_id, "waits")
        if (
            seq.placement.blocks
            and retries >= GIVE_UP_RETRIES
            and (seq.placement.num_local_slots or seq.placement.debts)
        ):
            # Two that each hold what the other lacks would wait for ever.
            self._holdings.preempt(seq, now, GAVE_BACK)
        self._state.sequences.wait(seq, now + self._holdings.backoff(retries), retries)

    def _start(self, seq: Sequence) -> None:
        self._state.histories.note(seq.request_id, "begins", blocks=seq.size_blocks)
        self._state.borrower.forgo(seq)
        self._state.sequences.run(seq)
        seq.placement.new_version()
        self._state.deferred.trim(seq)
