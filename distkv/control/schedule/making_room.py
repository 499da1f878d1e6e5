"""Slots for running sequences that need some (docs/design.md, "Making room").

When slots run short, full blocks of the sequence that holds most of them are moved out; if nobody lends, the one that
costs least to do again is preempted.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from random import Random

from distkv.control.loan.debtor.borrow import Borrow, Purpose
from distkv.control.request.sequence import SeqState, Sequence
from distkv.control.rmanager.state import RManagerState
from distkv.control.schedule.admission.worth import Choice
from distkv.control.schedule.endings import endings, steps_until, still_to_come
from distkv.control.schedule.holdings import LONGEST_RETRY_S, Holdings
from distkv.control.schedule.profiled_wait import profiled_wait_s
from distkv.control.timers import Timers

LEAST_MOVE_BLOCKS = 8
"""Full blocks that leave at once, where there are as many: what a move costs is messages and threads that wake at both
instances, and hardly its bytes."""
SOON_TOKENS = 4
REDO_S = 0.002
"""Seconds that one stands still for each token that it would compute again, where it is not known what that takes, or
this pool alone cannot hold it: its memory comes back in parts and from elsewhere."""


@dataclass(frozen=True, slots=True)
class Victim:
    """One that could be preempted. age: sorts oldest first. redo_tokens: what would be computed again. frees: whether
    slots here would come free."""

    request_id: str
    age: tuple[float, str]
    redo_tokens: int
    frees: bool


def cheapest(running: Iterable[Victim]) -> Victim | None:
    """The one that costs least to do again, of equal ones the youngest. The oldest is spared as long as another one
    frees a slot, so that it ends however cheap it is."""
    able = sorted((victim for victim in running if victim.frees), key=lambda victim: victim.age)
    spared = able[1:] or able
    return min(reversed(spared), key=lambda victim: victim.redo_tokens, default=None)


class MakingRoom:
    """Decides which running sequence of one instance gives up slots."""

    def __init__(self, state: RManagerState, holdings: Holdings, entropy: Random) -> None:
        self._state = state
        self._holdings = holdings
        self._entropy = entropy
        self._relieve_at = 0.0
        self._relieve_again: Timers[str] = Timers()
        self._relieve_retries = 0
        self._give_way_at = math.inf
        self._short: tuple[tuple[int, int, int, int], bool] = ((-1, -1, -1, -1), False)

    def next_deadline(self) -> float:
        """When `advance` has something to do that had to wait."""
        return self._relieve_again.next_at()

    def advance(self, now: float) -> None:
        """Move blocks out when slots run short; let one give way when a sequence stands still for want of one."""
        state = self._state
        self._relieve_again.take_due(now)
        stalled = self._stalled()
        if not stalled:
            self._give_way_at = math.inf
        if not (stalled or self._short_soon() or self._lacks_first_slot()) or self._relieving():
            return
        if state.deferred.has_slots:  # free with the next answer, as those of one that gave way just now
            return
        is_moving_out = any(s.placement.has_outgoing for s in state.running())
        if is_moving_out and not stalled:
            return
        most = max(LEAST_MOVE_BLOCKS, len(state.running()))
        if self._use_spare(most):
            return
        may_relieve = now >= self._relieve_at and (state.has_creditors or bool(state.owed))
        victim = self._fullest() if may_relieve else None
        if victim is not None and self._is_worth_it(victim, most, now):
            wanted = min(victim.placement.counts.movable, most)
            is_avoidable = state.fits_at_home(victim)
            near = state.stays_near(victim)
            state.borrower.start(victim, Purpose.RELIEVE, wanted, now, is_avoidable=is_avoidable, stays_near=near)
            return
        # What a sequence has in flight may fill blocks that can leave, or end a request: that comes first.
        stuck = any(not state.scheduler.has_in_flight(s) for s in stalled)
        if stuck and not is_moving_out:
            self._give_way(now)

    def on_borrowed(self, borrow: Borrow, now: float) -> None:
        """A borrow to make room is over: let blocks go, or somebody give way."""
        seq = borrow.seq
        blocks = seq.placement.movable() if seq.state is SeqState.RUNNING else []
        self._holdings.hand_over(seq, borrow, blocks)
        if borrow.grants and blocks:
            self._relieve_retries = 0
            return
        self._relieve_at = now + self._holdings.backoff(self._relieve_retries)
        self._relieve_again.set("", self._relieve_at)
        self._relieve_retries += 1
        if self._stalled():
            self._give_way(now)

    def _stalled(self) -> list[Sequence]:
        """Running sequences that stand still for want of a slot, with none free or coming back."""
        state = self._state
        if state.pool.num_free:
            return []
        return [s for s in state.scheduler.stalled if s.state is SeqState.RUNNING and not state.deferred.returning(s)]

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

    def _lacks_first_slot(self) -> bool:
        """Whether the oldest waiting request has not even the one slot that it needs to use borrowed memory, which one
        that this instance can hold does not need."""
        state = self._state
        if state.pool.num_free > len(state.running()):
            return False
        oldest = self._state.sequences.queue.hopeful.oldest
        if oldest is None or oldest.placement.unassigned_slots:
            return False
        if not oldest.placement.holds_kv and state.worth.is_known and state.fits_at_home(oldest):
            return False
        return self._holdings.unplaced_blocks(oldest) > 0

    def _use_spare(self, most: int) -> bool:
        """Have full blocks of a sequence go to what it keeps at creditors; false if none has both."""
        return any(self._holdings.use_spare(seq, most) for seq in self._state.running())

    def _relieving(self) -> bool:
        return self._state.borrower.is_borrowing(Purpose.RELIEVE)

    def _fullest(self) -> Sequence | None:
        """Of those that anybody may lend to."""
        state = self._state
        running = [s for s in state.running() if s.placement.counts.movable and state.may_be_lent_to(s)]
        return max(running, key=lambda s: (s.placement.counts.movable, s.age), default=None)

    def _is_worth_it(self, victim: Sequence, num_blocks: int, now: float) -> bool:
        """Whether so many blocks of one are to leave, so that all steps wait for partials, rather than the batch be
        smaller by one until another one ends: however many stand still, the others go on once one gives way. What this
        instance cannot hold alone has no choice."""
        state = self._state
        if not state.may_borrow_for(victim):
            return False
        if not state.fits_at_home(victim):
            return True
        running = state.running()
        choice = Choice(
            batch=len(running) - 1,
            is_remote=state.waits_for_partials,
            home_steps=steps_until(endings(state), 1),
            life_steps=still_to_come(state, victim),
            profiled_wait_s=profiled_wait_s(state, len(running), sum(one.length for one in running), num_blocks),
        )
        return state.worth.pays(choice, now)

    def _give_way(self, now: float) -> None:
        """Preempt one that cannot go on, else the one that costs least to do again. Where this instance has borrowed or
        lent, after a while that is the longer the more that is: of instances that stand still for each other's memory
        the one with the least to lose gives way. So it is with one that reclaims what it has lent, and may not borrow
        before it is home. One that runs alone, and that only creditors which drain lend to, would lose its place for
        nobody: it stands still for as long as memory may come free there."""
        state = self._state
        if (starving := state.sequences.queue.starving) is not None:
            self._holdings.preempt(starving, now, "live instances cannot hold it, and a running request needed a slot")
            return
        running = state.running()
        victims = [
            Victim(seq.request_id, seq.age, seq.num_computed, seq.placement.num_local_slots > 0) for seq in running
        ]
        victim = cheapest(victims)
        if victim is None:
            return
        seq = state.sequences[victim.request_id]
        shares = bool(state.owed) or state.loans.num_blocks > 0
        is_lent_to = any(map(state.may_be_lent_to, running))
        if is_lent_to and not state.has_creditors and len(running) == 1 and self._may_come_free(seq):
            return
        may_help = (is_lent_to and shares) or (state.is_one_sided and state.is_short)
        if may_help and self._give_way_at == math.inf:
            pause_s = self._patience_s(seq) * (0.5 + self._entropy.random())
            self._give_way_at = now + pause_s
            self._relieve_again.set("give way", self._give_way_at)
        elif not may_help or now >= self._give_way_at:
            self._give_way_at = math.inf
            self._holdings.preempt(seq, now, "a running request needed a slot")

    def _may_come_free(self, seq: Sequence) -> bool:
        """Whether a creditor of this sequence could lend more than the sequence has there, once others need less."""
        here: Counter[str] = Counter()
        for debt in seq.placement.debts:
            here[debt.creditor_id] += debt.capacity
        members = ((self._state.members.find(creditor_id), blocks) for creditor_id, blocks in here.items())
        return any(member is not None and member.lendable_blocks > blocks for member, blocks in members)

    def _patience_s(self, seq: Sequence) -> float:
        """For how long all may stand still in place of computing this one again: for what that takes."""
        token_s = self._state.scheduler.times.prompt_token_s
        if not token_s or not self._state.fits_at_home(seq):
            token_s = REDO_S
        return min(LONGEST_RETRY_S, token_s * seq.num_computed)
