"""What was borrowed comes home when there is room, though nobody reclaims it (001 §5.2).

Only whole spans come, a few blocks at a time, the smallest first: each creditor costs every step a wait per layer, so
half a span at home would not help. The room must have lasted for a while, be more than what those that run are expected
to grow into, and nobody may wait for it; spare positions count as that growth again. Where a gManager plans by
profiles (`greedy`), it plans these too; where it plans to even out the use of memory (`even`), what has left for that
stays.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from distkv.control.loan.debtor.debts import DebtBook
from distkv.control.loan.debtor.paths import Path
from distkv.control.loan.debtor.recall import Cause, Recaller
from distkv.control.request.block import Debt
from distkv.control.request.sequence import Sequence
from distkv.control.rmanager.state import RManagerState

AT_ONCE_BLOCKS = 4
"""On their way home at a time."""
LASTING_S = 0.5
"""For so long there must have been room."""
LEAST_ROOM_BLOCKS = 2
"""Left free, besides one for each sequence that runs."""
PLANNED_S = 10.0
"""After a planned move nothing comes home for so long unless that is planned."""


class Homecoming:
    """Decides what one instance brings home, as debtor, by its own choice."""

    def __init__(self, state: RManagerState, debts: DebtBook, recaller: Recaller) -> None:
        self._state = state
        self._debts = debts
        self._recaller = recaller
        self._since = math.inf
        self._look_at = math.inf
        self._planned_until = -math.inf

    def on_planned(self, now: float) -> None:
        """A gManager plans where blocks lie."""
        self._planned_until = now + PLANNED_S

    def next_deadline(self) -> float:
        """When room has lasted long enough, or plans have not."""
        return self._look_at

    @property
    def is_idle(self) -> bool:
        """Whether nothing is to come home, nor would be if each that runs had the slot already that it takes next."""
        return self._next(len(self._state.running())) is None

    def advance(self, now: float) -> None:
        """Begin to bring a span home, or go on with it."""
        found = self._next()
        if found is None:
            self._since = self._look_at = math.inf
            return
        self._since = min(self._since, now)
        begin_at = max(self._since + LASTING_S, self._planned_until)
        self._look_at = begin_at if now < begin_at else math.inf
        if now < begin_at or self._recaller.num_coming:
            return
        seq, debt = found
        if debt.num_lying:
            self._recaller.recall_from(seq, debt, AT_ONCE_BLOCKS, Cause.ROOM, now)
        else:
            self._debts.release_unused(seq, debt)

    def _next(self, more: int = 0) -> tuple[Sequence, Debt] | None:
        """The smallest span that could come home, of equal ones that of the oldest request. more: slots that are taken
        to be free besides."""
        state = self._state
        if state.is_one_sided and state.performance is not None:
            return None  # the gManager plans that too, and would plan it to leave again
        if not self._debts.is_owing or state.sequences.is_memory_awaited or state.instance_state != "ready":
            return None
        room = self._room() + more
        if room <= 0:
            return None
        fitting = [(seq, debt) for seq, debt in self._settled() if debt.num_lying + debt.num_spare <= room]
        return min(fitting, key=lambda found: found[1].num_lying, default=None)

    def _room(self) -> int:
        state = self._state
        keep = state.growing.blocks() + len(state.running()) + LEAST_ROOM_BLOCKS + state.settings.staging_blocks
        return state.pool.num_free - keep + self._recaller.num_coming

    def _settled(self) -> Iterator[tuple[Sequence, Debt]]:
        """Spans of those that run that nothing is on its way to, and that blocks can be read from; but for what left as
        planned, where that still goes on: it would be planned to leave again."""
        state = self._state
        for seq in state.running():
            for debt in seq.placement.debts:
                if debt.is_planned and state.is_planned:
                    continue
                path = Path(state.settings.instance_id, debt.creditor_id)
                if debt.filled == len(debt.blocks) and not state.paths.is_in_doubt(path):
                    yield seq, debt
