"""One member's part of a run of DGFM: rBlocks that lie at its creditor in a cycle of debts come home, into the slots
that its debtor in the cycle gives back (000 §4.5).

freeze: what is lent to the one is pinned, it is not reclaimed, and a few slots are set aside. swap: rBlocks come home
one pull at a time, each followed by a release at the creditor, which uses what comes free there for its own. thaw: the
end, also when time is up.

Each rBlock comes home by a recall as any other, so a run may stop anywhere: whatever is late, lost, cancelled or dead,
fewer come home. Requests that run come first: they may have the slots that were set aside, and pulls leave them their
time.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from distkv.control.blocks import SlotState
from distkv.control.commands import TellGManager
from distkv.control.loan.debtor.debts import DebtBook
from distkv.control.loan.debtor.recall import Cause, Recaller
from distkv.control.request.block import Block, Debt
from distkv.control.request.sequence import SeqState, Sequence
from distkv.control.rmanager.state import RManagerState
from distkv.wire.messages.common import PlanEpoch
from distkv.wire.messages.to_gmanager import Frozen, Swapped
from distkv.wire.messages.to_rmanager import Freeze, Swap, Thaw

MOST_SPARE_BLOCKS = 16
"""Slots set aside for a run, where there is room, and rBlocks that come home at once. One would do (000 §4.5), but each
pull costs those that decode as much as its messages and threads take, whatever its size."""
LONGEST_FREEZE_S = 30.0
MOST_PULL_SHARE = 0.02
"""Share of the time in which a pull may be under way while requests run: decodes lose no more than that by it."""


@dataclass(slots=True, eq=False)
class Part:
    """Of this instance in a run.

    num_blocks: that it could swap when it froze. until: when the freeze ends. spare: slots that are set aside. wanted:
    rBlocks that are to come home; None before `Swap`. home: those that have. pull: the id of the pull under way, when
    it began, and its size. next_pull_at: not before. is_done: it brings home no more, and has said so.
    """

    run: PlanEpoch
    creditor_id: str
    debtor_id: str
    num_blocks: int
    until: float
    spare: list[int] = field(default_factory=list)
    wanted: int | None = None
    home: int = 0
    pull: tuple[int, float, int] | None = None
    next_pull_at: float = -math.inf
    is_done: bool = False

    @property
    def lacks(self) -> int:
        """Slots that it has use for, besides those that it has."""
        if self.wanted is None or self.is_done:
            return 0
        return self.wanted - self.home - len(self.spare) - (0 if self.pull is None else self.pull[2])


class Swapper:
    """The run that an instance takes part in, one at a time."""

    def __init__(self, state: RManagerState, debts: DebtBook, recaller: Recaller) -> None:
        self._state = state
        self._debts = debts
        self._recaller = recaller
        self._part: Part | None = None
        self._last = PlanEpoch(incarnation=0, counter=0)

    # --- what a gManager says

    def on_freeze(self, message: Freeze, now: float) -> None:
        """Pin, or say why not."""
        part = self._part
        if part is None or part.run != message.run:
            reason = self._why_not(message)
            num_blocks = 0 if reason else min(message.num_blocks, self._num_placed(message.creditor_id))
            if not num_blocks:
                reason = reason or f"nothing lies at {message.creditor_id} that could come home"
                self._say_frozen(Frozen(instance_id=self._own_id, run=message.run, reason=reason))
                return
            until = now + min(message.duration_s, LONGEST_FREEZE_S)
            part = self._part = Part(message.run, message.creditor_id, message.debtor_id, num_blocks, until)
            room = max(0, self._state.pool.num_free - len(self._state.running()))
            self._set_aside(part, min(MOST_SPARE_BLOCKS, num_blocks, room))
            self._state.pinned_debtor = part.debtor_id
        if part.wanted is None:
            num_spare = len(part.spare)
            frozen = Frozen(instance_id=self._own_id, run=part.run, num_blocks=part.num_blocks, spare_blocks=num_spare)
            self._say_frozen(frozen)

    def on_swap(self, message: Swap, now: float) -> None:
        """All have frozen: begin."""
        part = self._part
        if part is None or part.run != message.run or part.wanted is not None:
            return
        self._state.counters.dgfm_runs += 1
        part.wanted = min(message.num_blocks, part.num_blocks)
        self._free(part, len(part.spare) - part.wanted)
        self._go_on(part, now)

    def on_thaw(self, message: Thaw) -> None:
        """The run is over, or never was one here."""
        if self._part is not None and self._part.run == message.run:
            self._end(self._part)
        self._remember(message.run)

    # --- what happens meanwhile

    def on_pulled(self, pull_id: int, num_home: int, problem: str, now: float) -> None:
        """A recall is over; what it had no use for is free again."""
        part = self._part
        if part is None or part.pull is None or part.pull[0] != pull_id:
            return
        (_, began_at, num_slots), part.pull = part.pull, None
        part.home += num_home
        self._state.counters.swapped_blocks += num_home
        if self._state.running():
            part.next_pull_at = now + (now - began_at) * (1 / MOST_PULL_SHARE - 1)
        if problem or part.is_done:
            self._finish(part)
            return
        self._set_aside(part, min(num_slots - num_home, part.lacks))
        self._go_on(part, now)

    def on_returned(self, debtor_id: str, num_slots: int, now: float) -> None:
        """So many slots have come free that were lent to a debtor: they are for the run before anything else."""
        part = self._part
        if part is not None and part.debtor_id == debtor_id:
            self._set_aside(part, min(num_slots, part.lacks))
            self._go_on(part, now)

    def advance(self, now: float) -> None:
        """Go on when a pause is over; end when time is up, or slots are needed more urgently."""
        part, state = self._part, self._state
        if part is None:
            return
        if now >= part.until or state.instance_state != "ready":
            self._end(part)
        else:
            if part.spare and not state.pool.num_free and state.scheduler.stalled:
                self._give_way(part)
            self._go_on(part, now)

    def next_deadline(self) -> float:
        """When `advance` has something to do."""
        part = self._part
        if part is None:
            return math.inf
        is_pausing = part.wanted is not None and not part.is_done and part.pull is None and part.spare
        return min(part.until, part.next_pull_at) if is_pausing else part.until

    @property
    def is_idle(self) -> bool:
        """Whether it takes part in no run."""
        return self._part is None

    def slots(self) -> list[int]:
        """Those that are set aside."""
        return [] if self._part is None else self._part.spare

    def validate(self) -> None:
        """What is pinned is pinned for a run, and no more is set aside than it has use for."""
        part = self._part
        assert self._state.pinned_debtor == ("" if part is None else part.debtor_id), "pinned for no run"
        if part is None:
            return
        assert part.num_blocks > 0 and part.run != self._last
        assert part.wanted is not None or (part.pull is None and not part.home and not part.is_done)
        assert len(part.spare) <= (MOST_SPARE_BLOCKS if part.wanted is None else part.wanted)
        assert part.lacks >= 0 and not (part.is_done and part.spare), "slots are kept that nothing needs"

    # --- helpers

    @property
    def _own_id(self) -> str:
        return self._state.settings.instance_id

    def _why_not(self, message: Freeze) -> str:
        """Why this instance takes no part in a run; empty if it may."""
        state = self._state
        if state.instance_state != "ready":
            return f"it is {state.instance_state}"
        if self._part is not None:
            return "another run has not ended here"
        if message.run.incarnation == self._last.incarnation and message.run <= self._last:
            return "the run is over"
        loans = state.loans.of_debtor(message.debtor_id)
        if not loans:
            return f"nothing is lent to {message.debtor_id}"
        if any(loan.num_demanded for loan in loans):
            return f"what is lent to {message.debtor_id} is reclaimed"
        return ""

    def _go_on(self, part: Part, now: float) -> None:
        """Bring home the next, as many as there are slots for; or be done. Looks at debts only when it could."""
        if part.wanted is None or part.is_done or part.pull is not None:
            return
        if part.home >= part.wanted:
            self._finish(part)
        elif part.spare and now >= part.next_pull_at:
            chosen = self._next(part.creditor_id)
            if chosen is None:
                self._finish(part)
                return
            seq, debt, blocks = chosen
            slots, part.spare = part.spare[: len(blocks)], part.spare[len(blocks) :]
            blocks = blocks[len(blocks) - len(slots) :]
            part.pull = self._recaller.pull_back(seq, debt, blocks, slots, Cause.SWAP, now), now, len(slots)

    def _next(self, creditor_id: str) -> tuple[Sequence, Debt, list[Block]] | None:
        """The last of the blocks that a request has at the creditor: of one that runs before others, and of that with
        fewest there, so that its Steps soon wait for one creditor less."""
        owed = self._debts.at(creditor_id)
        for seq, debt in sorted(
            owed, key=lambda one: (one[0].state is not SeqState.RUNNING, one[1].capacity, one[0].age)
        ):
            if blocks := self._placed(debt):
                return seq, debt, blocks[-MOST_SPARE_BLOCKS:]
        return None

    def _num_placed(self, creditor_id: str) -> int:
        return sum(len(self._placed(debt)) for _, debt in self._debts.at(creditor_id))

    def _placed(self, debt: Debt) -> list[Block]:
        coming = self._recaller.coming(debt)
        return [block for block in debt.placed() if block.number not in coming]

    def _set_aside(self, part: Part, num_slots: int) -> None:
        slots = self._state.pool.allocate(num_slots, SlotState.LOCAL) if num_slots > 0 else []
        assert slots is not None
        part.spare += slots

    def _free(self, part: Part, num_slots: int) -> None:
        slots = part.spare[: max(0, num_slots)]
        del part.spare[: len(slots)]
        self._state.pool.free(slots, SlotState.LOCAL)

    def _give_way(self, part: Part) -> None:
        """Slots are needed for requests that run: bring home what is on its way, and no more."""
        self._free(part, len(part.spare))
        if part.wanted is not None:
            part.wanted -= part.lacks

    def _finish(self, part: Part) -> None:
        """It brings home no more; what is pinned stays so for the others."""
        if part.wanted is not None and not part.is_done:
            part.is_done = True
            swapped = Swapped(instance_id=self._own_id, run=part.run, num_blocks=part.home)
            self._state.emit(TellGManager(swapped))
        self._free(part, len(part.spare))

    def _end(self, part: Part) -> None:
        self._finish(part)
        self._remember(part.run)
        self._part, self._state.pinned_debtor = None, ""

    def _remember(self, run: PlanEpoch) -> None:
        """It is over: a `Freeze` of it that comes late begins nothing."""
        if run.incarnation != self._last.incarnation or run > self._last:
            self._last = run

    def _say_frozen(self, frozen: Frozen) -> None:
        self._state.emit(TellGManager(frozen))
