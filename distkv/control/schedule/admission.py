"""Who gets memory next: admission, growth, making room, preemption (docs/design.md, "Admission").

Admission reserves every block of a prompt, local and lent, or holds none and waits. A sequence that lost a span is
admitted the same way for what it lacks. When a running sequence needs a slot and there is none, full blocks of the
one that holds most are moved out; if nobody lends, the youngest is preempted.
"""

from __future__ import annotations

from random import Random

from distkv import events
from distkv.control.blocks import SlotState
from distkv.control.loan.borrowing import Borrow, Purpose
from distkv.control.loan.debts import DebtBook
from distkv.control.request.block import Block
from distkv.control.request.sequence import SeqState, Sequence
from distkv.control.rmanager.state import RManagerState

FIRST_RETRY_S = 0.05
LONGEST_RETRY_S = 1.0
AGED_S = 2.0
LEAST_MOVE_BLOCKS = 4
SOON_TOKENS = 4
GIVE_UP_RETRIES = 8


class Admission:
    """Decides which sequences of one instance hold which blocks."""

    def __init__(self, state: RManagerState, debts: DebtBook, entropy: Random) -> None:
        self._state = state
        self._debts = debts
        self._entropy = entropy
        self._relieve_at = 0.0
        self._relieve_retries = 0
        self._waiting_since: dict[str, float] = {}

    def waiting(self) -> list[Sequence]:
        """Oldest first."""
        return [seq for seq in self._not_running() if seq.state is SeqState.WAITING]

    def admit(self, now: float) -> None:
        """Start or resume what there is memory for; what holds some already goes first, so that it ends.

        An aged request is not overtaken by younger ones, also while it borrows. Those of them that wait as well and
        hold memory give it up for it.
        """
        state = self._state
        busy = state.borrower.is_borrowing(Purpose.PLACE)
        aged: Sequence | None = None
        for seq in sorted(self._not_running(), key=lambda s: not s.placement.holds_kv):
            if len(state.running()) >= state.settings.max_num_seqs:
                return
            since = self._waiting_since.setdefault(seq.request_id, now)
            if aged is not None and seq.age > aged.age:
                continue
            may_try = seq.state is SeqState.WAITING and now >= seq.retry_at
            if may_try and self._acquire(seq, now, may_borrow=not busy):
                busy = busy or seq.state is SeqState.ACQUIRING
            elif may_try and now - since >= AGED_S:
                self._make_way(seq, now)
            if seq.state is not SeqState.RUNNING and now - since >= AGED_S:
                aged = seq

    def _make_way(self, seq: Sequence, now: float) -> None:
        younger = [s for s in self.waiting() if s.placement.holds_kv and s.age > seq.age]
        if younger:
            self._preempt(younger[-1], now)

    def _not_running(self) -> list[Sequence]:
        return sorted(
            (s for s in self._state.sequences.values() if s.state is not SeqState.RUNNING), key=lambda s: s.age
        )

    def unplaced_blocks(self, seq: Sequence) -> int:
        """Blocks it needs a place for before it can go on, beyond the slots it holds or will soon have back."""
        seq.placement.cover(len(seq.request.tokens))
        wanted = seq.placement.counts.unplaced + seq.placement.ends_in_transit
        return max(0, wanted - len(seq.placement.unassigned_slots) - self._state.returning(seq))

    def make_room(self, now: float) -> None:
        """Move blocks out when slots run short; preempt the youngest when a sequence stands still for want of one."""
        state = self._state
        stalled = self._stalled()
        if not (stalled or self._short_soon() or self._starving()) or self._relieving():
            return
        room_is_coming = state.has_deferred_slots or any(s.placement.has_outgoing for s in state.running())
        if room_is_coming and not stalled:
            return
        victim = self._fullest()
        if now >= self._relieve_at and victim is not None and state.possible_creditors():
            wanted = min(victim.placement.counts.movable, max(LEAST_MOVE_BLOCKS, len(state.running())))
            state.borrower.start(victim, Purpose.RELIEVE, wanted, now)
            return
        # What a sequence has in flight may fill blocks that can leave, or end a request: that comes first.
        stuck = any(not state.scheduler.has_in_flight(s) for s in stalled)
        if stuck and not room_is_coming and (now >= self._relieve_at or not state.possible_creditors()):
            self._preempt_youngest(now)

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
            self._relieve_retries += 1
            if self._stalled():
                self._preempt_youngest(now)
        else:
            self._hand_over(seq, borrow, seq.placement.at_creditors(borrow.exclude))

    def restart(self, seq: Sequence, now: float) -> None:
        """Take everything from a sequence; it starts over from its tokens when there is memory again."""
        state = self._state
        state.scheduler.take_back(seq)
        self._debts.give_back(state.borrower.cancel(seq))
        seq.state = SeqState.WAITING
        self._debts.drop(seq, now)
        seq.retry_at, seq.retries = now, 0

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
            seq.state = SeqState.WAITING
            seq.retry_at, seq.retries = 0.0, 0
            self._state.trim(seq)

    def forget(self, seq: Sequence) -> None:
        """The sequence ended."""
        self._waiting_since.pop(seq.request_id, None)

    # --- admission

    def _acquire(self, seq: Sequence, now: float, may_borrow: bool) -> bool:
        """Reserve what the sequence lacks or begin to borrow it; false if it must wait."""
        state = self._state
        need = self.unplaced_blocks(seq)
        headroom = len(state.running())
        local = min(need, max(0, state.pool.num_free - headroom))
        remote = need - local
        if remote == 0:
            self._take_local(seq, local)
            self._start(seq)
            return True
        if not may_borrow or not state.possible_creditors():
            return False
        self._take_local(seq, local)
        remote = min(remote, seq.placement.counts.unplaced) + self._missing_staging(seq)
        if self._missing_staging(seq) and not seq.placement.counts.movable:
            return False
        seq.state = SeqState.ACQUIRING
        state.borrower.start(seq, Purpose.PLACE, remote, now)
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
        if borrow.granted >= remote + self._missing_staging(seq) and len(extra) == self._missing_staging(seq):
            self._hand_over(seq, borrow, extra + unplaced[:remote])
            self._start(seq)
            return
        self._debts.give_back(borrow.grants)
        self._state.pool.free(seq.placement.take_unassigned(), SlotState.LOCAL)
        seq.state = SeqState.WAITING
        retries = seq.retries + 1
        if (
            seq.placement.blocks
            and retries >= GIVE_UP_RETRIES
            and (seq.placement.num_local_slots or seq.placement.debts)
        ):
            # Two that each hold what the other lacks would wait for ever.
            self.restart(seq, now)
        seq.retries, seq.retry_at = retries, now + self._backoff(retries)

    def _start(self, seq: Sequence) -> None:
        seq.state = SeqState.RUNNING
        seq.retries, seq.starved_since = 0, None
        seq.placement.new_version()
        self._waiting_since.pop(seq.request_id, None)
        self._state.trim(seq)

    def _hand_over(self, seq: Sequence, borrow: Borrow, blocks: list[Block]) -> None:
        """Let blocks go to the granted spans, in order; spans that none is left for go back."""
        rest = list(blocks)
        for debt in borrow.grants:
            if not rest:
                self._debts.give_back([debt])
                continue
            seq.placement.borrow(debt, rest[: debt.capacity])
            rest = rest[debt.capacity :]
            self._debts.release_unused(seq, debt)

    # --- making room

    def _stalled(self) -> list[Sequence]:
        """Running sequences that stand still for want of a slot, with none free or coming back."""
        state = self._state
        if state.pool.num_free:
            return []
        return [s for s in state.scheduler.stalled if s.state is SeqState.RUNNING and not state.returning(s)]

    def _short_soon(self) -> bool:
        """Whether fewer slots are free than running sequences need within a few tokens."""
        block_tokens = self._state.settings.block_tokens
        soon = [
            s
            for s in self._state.running()
            if not s.placement.unassigned_slots
            and s.can_grow
            and len(s.placement.blocks) * block_tokens - s.length < SOON_TOKENS
        ]
        return self._state.pool.num_free < len(soon)

    def _starving(self) -> bool:
        """Whether the oldest waiting request has not even the one slot that it needs to use borrowed memory."""
        state = self._state
        if state.pool.num_free > len(state.running()):
            return False
        return any(not s.placement.unassigned_slots and self.unplaced_blocks(s) for s in self.waiting()[:1])

    def _relieving(self) -> bool:
        return self._state.borrower.is_borrowing(Purpose.RELIEVE)

    def _fullest(self) -> Sequence | None:
        running = [s for s in self._state.running() if s.placement.counts.movable]
        return max(running, key=lambda s: (s.placement.counts.movable, s.age), default=None)

    def _preempt_youngest(self, now: float) -> None:
        if running := self._state.running():
            self._preempt(max(running, key=lambda s: s.age), now)

    def _preempt(self, seq: Sequence, now: float) -> None:
        self._state.counters.preemptions += 1
        self._state.publish(events.Preempted(request_id=seq.request_id, num_tokens=len(seq.request.tokens)))
        self.restart(seq, now)
        seq.retry_at = now + self._backoff(seq.retries)

    def _backoff(self, retries: int) -> float:
        """Doubling, with jitter, so that instances that compete for the same blocks do not do so for ever."""
        return min(LONGEST_RETRY_S, FIRST_RETRY_S * 2.0 ** min(retries, 10)) * (0.5 + self._entropy.random())
