"""What an rManager does by a gManager's plan: blocks of a request go to one creditor, or come home (001 §6.2).

A plan is made from heartbeats, so it may be stale. What cannot be done is dropped and counted; the next heartbeats say
so, and it is planned again if it still should be. What can be done is a borrow as any other, at that creditor alone, or
a recall: plans have no way of their own around what keeps memory safe.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from distkv import events
from distkv.control.loan.debtor.borrow import Borrow, Purpose
from distkv.control.loan.debtor.debts import DebtBook
from distkv.control.loan.debtor.recall import Recaller
from distkv.control.request.sequence import SeqState, Sequence
from distkv.control.rmanager.state import RManagerState
from distkv.control.schedule.holdings import Holdings
from distkv.wire.messages.common import PlanEpoch
from distkv.wire.messages.to_gmanager import MAX_DROPPED, DroppedMove
from distkv.wire.messages.to_rmanager import MoveKvcache

STALE_AFTER = 4
"""A plan is made from the newest heartbeat that came; one from before so many newer ones was on its way for long."""
TOLD_BY = 4
"""Heartbeats that say of a plan that it was dropped: each may be lost."""


class PlannedMoves:
    """Carries out the moves planned for one instance, as debtor. newest_seq: of its heartbeats."""

    def __init__(
        self,
        state: RManagerState,
        debts: DebtBook,
        holdings: Holdings,
        recaller: Recaller,
        newest_seq: Callable[[], int],
    ) -> None:
        self._state = state
        self._debts = debts
        self._holdings = holdings
        self._recaller = recaller
        self._newest_seq = newest_seq
        self._newest: PlanEpoch | None = None
        self._dropped: deque[tuple[int, DroppedMove]] = deque(maxlen=MAX_DROPPED)  # by the newest heartbeat then

    def on_move(self, move: MoveKvcache, now: float) -> None:
        """Begin it, or drop it."""
        state, counters = self._state, self._state.counters
        if not self._is_new(move):
            counters.infeasible_moves += 1
            return
        num_blocks, why = self._begin(move, now)
        if not num_blocks:
            self._drop(move, why)
            return
        counters.planned_moves += 1
        counters.planned_blocks += num_blocks
        begun = events.MoveBegun(
            request_id=move.request_id,
            destination=move.destination,
            blocks=num_blocks,
            gain_tokens_per_s=move.gain_tokens_per_s,
        )
        state.publish(begun)
        why = f"{move.gain_tokens_per_s:.3g} tokens/s more are expected" if move.gain_tokens_per_s else ""
        state.histories.note(move.request_id, "planned", instance_id=move.destination, why=why, blocks=num_blocks)

    def on_borrowed(self, borrow: Borrow) -> None:
        """The creditor has answered: let as many blocks go as it granted."""
        seq = borrow.seq
        is_running = self._state.sequences.get(seq.request_id) is seq and seq.state is SeqState.RUNNING
        blocks = seq.placement.movable()[: borrow.granted] if is_running else []
        if not blocks:
            if borrow.move is not None:
                why = "it does not run any more" if not is_running else "none of its full rBlocks is here any more"
                self._drop(borrow.move, why if borrow.granted else f"{borrow.move.destination} granted nothing")
            else:
                self._state.counters.infeasible_moves += 1
            self._debts.give_back(borrow.grants)
            return
        self._holdings.hand_over(seq, borrow, blocks)

    def dropped(self) -> tuple[DroppedMove, ...]:
        """What the next heartbeat says of plans that were dropped."""
        newest_seq = self._newest_seq()
        while self._dropped and newest_seq - self._dropped[0][0] >= TOLD_BY:
            self._dropped.popleft()
        return tuple(one for _, one in self._dropped)

    def _drop(self, move: MoveKvcache, why: str) -> None:
        state = self._state
        state.counters.infeasible_moves += 1
        self._dropped.append((self._newest_seq(), DroppedMove(move.epoch, why)))
        state.histories.note(move.request_id, "dropped", instance_id=move.destination, why=why, blocks=move.num_blocks)

    def _is_new(self, move: MoveKvcache) -> bool:
        """Whether it is newer than what was heard of the same gManager, and meant for this process."""
        newest, epoch = self._newest, move.epoch
        if newest is not None and epoch.incarnation == newest.incarnation and epoch <= newest:
            return False
        if move.debtor_incarnation != self._state.settings.incarnation:
            return False
        self._newest = epoch
        return True

    def _begin(self, move: MoveKvcache, now: float) -> tuple[int, str]:
        """How many blocks it is about; 0 if it cannot be done, and why."""
        state = self._state
        if not 0 <= self._newest_seq() - move.seq < STALE_AFTER:
            return 0, "it came too late"
        if state.instance_state != "ready":
            return 0, f"the instance is {state.instance_state}"
        seq = state.sequences.get(move.request_id)
        if seq is None:
            return 0, "it is not served here"
        if seq.state is not SeqState.RUNNING:
            return 0, "it does not run"
        if move.destination == state.settings.instance_id:
            # Who waits for memory has it before what lies elsewhere comes home.
            if state.sequences.is_memory_awaited:
                return 0, "requests wait for memory"
            return self._recaller.recall(seq, move.num_blocks, now), "there is no room for it, or it is on its way"
        return self._lend_out(seq, move, now)

    def _lend_out(self, seq: Sequence, move: MoveKvcache, now: float) -> tuple[int, str]:
        """Blocks go to what the sequence keeps at that creditor already, and it is asked for the rest."""
        state, borrows = self._state, self._state.borrower.all_of(seq)
        if not state.has_creditors:
            return 0, "nobody may be asked for memory"
        if any(borrow.purpose is not Purpose.PLANNED for borrow in borrows):
            return 0, "it borrows for itself"
        if any(borrow.trying == move.destination for borrow in borrows):
            return 0, f"{move.destination} is being asked already"
        movable = seq.placement.counts.movable - sum(borrow.num_blocks for borrow in borrows)
        wanted = min(move.num_blocks, movable)
        if wanted <= 0:
            return 0, "none of its full rBlocks is here"
        rest = wanted - self._holdings.use_spare(seq, wanted, move.destination)
        if rest:
            borrow = state.borrower.start_at(move.destination, seq, rest, now)
            borrow.move = move if rest == wanted else None
        return wanted, ""
