"""Fragmented memory management (DGFM, 000 §4.5): cycles of debts are cancelled, so that what was lent both ways lies at
home.

A run is of one cycle: freeze → swap → thaw. Each member freezes and says how much it could swap; all bring home as much
as the one that could swap least, or nothing if that is too little; then all thaw. Members are in one run at a time, and
rest afterwards until their heartbeats have told what has changed. A gManager owns nothing: members decide for
themselves, a freeze ends by itself, and a run whose messages are lost, whose members die, or whose ledger was stale
ends with fewer rBlocks at home, and nothing else.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

from distkv import events
from distkv.control.cluster.debts.debt_graph import Cycle
from distkv.control.cluster.ledger import Ledger
from distkv.control.cluster.pauses import Pauses
from distkv.control.commands import Answer, GManagerCommand, Publish
from distkv.control.timers import Timers
from distkv.wire.messages.common import PlanEpoch, clipped
from distkv.wire.messages.to_gmanager import Frozen, Swapped
from distkv.wire.messages.to_rmanager import Freeze, Swap, Thaw
from distkv.wording import counted

FREEZE_S = 5.0
ANSWER_S = 1.0
"""For all members to freeze, and to say that they have swapped when the freeze is over."""
REST_PERIODS = 4.0
"""Heartbeats of its members after a run, until they may be in another one."""
REFUSED_REST_S, LONGEST_REST_S = 10.0, 40.0
"""After a run that came to nothing its cycle is left alone so long at first, and twice as long each time; so is whoever
it was for, that the others are found in smaller ones meanwhile."""
MOST_KEPT = 1024
"""Cycles that came to nothing and are remembered."""
MOST_LOOKS = 2048
"""Debts that are looked at in one period: about two milliseconds."""
MOST_MEMBERS = 64
"""Of a cycle: the more, the sooner one of them is busy, short or gone."""
MOST_BEGUN = 16
"""Runs that begin in one period."""


@dataclass(slots=True, eq=False)
class Run:
    """One cycle being swapped since `began_at`. frozen, swapped: what members have answered; num_blocks: what each was
    told to swap."""

    epoch: PlanEpoch
    cycle: Cycle
    began_at: float
    frozen: dict[str, Frozen] = field(default_factory=dict)
    swapped: dict[str, int] = field(default_factory=dict)
    num_blocks: int = 0


class Dgfm:
    """The runs of one gManager. What it has to say comes out of `take_commands`.

    ledger: whose debt graph it looks at. incarnation: of this gManager. least_blocks: smallest swap. period_s: of
    heartbeats, and how often cycles are looked for.
    """

    def __init__(self, ledger: Ledger, incarnation: int, least_blocks: int, period_s: float) -> None:
        self._ledger = ledger
        self._incarnation = incarnation
        self._least_blocks = least_blocks
        self._period_s = period_s
        self._last_number = 0
        self._runs: dict[int, Run] = {}
        self._busy: dict[str, Run] = {}
        self._due: Timers[int] = Timers()
        self._resting: Timers[str] = Timers()
        self._pauses: Pauses[tuple[str, ...]] = Pauses(REFUSED_REST_S, LONGEST_REST_S, MOST_KEPT, LONGEST_REST_S)
        self._look_at = -math.inf
        self._commands: list[GManagerCommand] = []

    def advance(self, now: float) -> None:
        """All that has come was read: end what is over, and look for cycles when it is time."""
        for number in self._due.take_due(now):
            run = self._runs[number]
            if run.num_blocks:
                self._end(run, _less(run, now), now)
            else:
                missing = [member for member in run.cycle.members if member not in run.frozen]
                self._end(run, f"{', '.join(missing)} did not answer within {ANSWER_S:g} s", now, missing)
        if self._ledger.debt_graph.is_suspicious and now >= self._look_at:
            self._look_at = now + self._period_s
            self._resting.take_due(now)
            self._look(now)

    def take_commands(self) -> list[GManagerCommand]:
        """What there is to tell whom since the last call."""
        commands, self._commands = self._commands, []
        return commands

    def next_deadline(self) -> float:
        """When `advance` has something to do."""
        return min(self._due.next_at(), self._look_at if self._ledger.debt_graph.is_suspicious else math.inf)

    def on_frozen(self, message: Frozen, now: float) -> None:
        """A member has frozen, or cannot."""
        run = self._of(message.run, message.instance_id)
        if run is None or run.num_blocks:
            return
        if not message.num_blocks:
            self._end(run, f"{message.instance_id}: {message.reason}", now, [message.instance_id])
            return
        run.frozen[message.instance_id] = message
        if len(run.frozen) < len(run.cycle.members):
            return
        num_blocks = min(run.cycle.num_blocks, *(one.num_blocks for one in run.frozen.values()))
        if num_blocks < self._least_blocks:
            short = [name for name, one in run.frozen.items() if one.num_blocks == num_blocks]
            self._end(run, f"one of them could bring home {counted(num_blocks, 'rBlock')} only", now, short)
        elif not any(one.spare_blocks for one in run.frozen.values()):
            self._end(run, "none of them has a slot to begin with", now)
        else:
            run.num_blocks = num_blocks
            self._due.set(run.epoch.counter, now + FREEZE_S + ANSWER_S)
            for member in run.cycle.members:
                self._tell(member, Swap(run=run.epoch, num_blocks=num_blocks))

    def on_swapped(self, message: Swapped, now: float) -> None:
        """A member's part is over."""
        run = self._of(message.run, message.instance_id)
        if run is None or not run.num_blocks:
            return
        run.swapped[message.instance_id] = min(message.num_blocks, run.num_blocks)
        if len(run.swapped) == len(run.cycle.members):
            self._end(run, _less(run, now), now)

    def _look(self, now: float) -> None:
        begun = 0
        for cycle in self._ledger.debt_graph.cycles(MOST_LOOKS, self._is_free):
            if begun == MOST_BEGUN or len(cycle.members) > MOST_MEMBERS:
                continue
            if self._pauses.is_over(cycle.members, now) and all(map(self._is_free, cycle.members)):
                begun += 1
                self._begin(cycle, now)

    def _is_free(self, instance_id: str) -> bool:
        entry = self._ledger.entries.get(instance_id)
        is_there = entry is not None and entry.state == "ready"
        return is_there and instance_id not in self._busy and instance_id not in self._resting

    def _begin(self, cycle: Cycle, now: float) -> None:
        self._last_number += 1
        run = self._runs[self._last_number] = Run(PlanEpoch(self._incarnation, self._last_number), cycle, now)
        self._due.set(self._last_number, now + ANSWER_S)
        owes = dict(cycle.edges())
        owed_by = {creditor: debtor for debtor, creditor in owes.items()}
        for member in cycle.members:
            self._busy[member] = run
            freeze = Freeze(
                run=run.epoch,
                creditor_id=owes[member],
                debtor_id=owed_by[member],
                num_blocks=cycle.num_blocks,
                duration_s=FREEZE_S,
            )
            self._tell(member, freeze)
        self._publish(events.DgfmBegun(run=run.epoch.counter, members=_names(run), blocks=cycle.frees))

    def _end(self, run: Run, why: str, now: float, because_of: Iterable[str] = ()) -> None:
        """because_of: those for whom it came to nothing, as far as it is known."""
        del self._runs[run.epoch.counter]
        self._due.cancel(run.epoch.counter)
        blocks = sum(run.swapped.values())
        for member in run.cycle.members:
            del self._busy[member]
            self._resting.set(member, now + REST_PERIODS * self._period_s)
            self._tell(member, Thaw(run=run.epoch))
        if blocks:
            self._pauses.succeeded(run.cycle.members)
        else:
            seconds = self._pauses.failed(run.cycle.members, now)
            for member in because_of:
                self._resting.set(member, now + seconds)
        ended = events.DgfmEnded(
            run=run.epoch.counter,
            members=_names(run),
            predicted=run.cycle.frees,
            blocks=blocks,
            why=why,
        )
        self._publish(ended)

    def _of(self, epoch: PlanEpoch, instance_id: str) -> Run | None:
        """The run, if it goes on and this is a member of it."""
        run = self._runs.get(epoch.counter)
        return run if run is not None and run.epoch == epoch and self._busy.get(instance_id) is run else None

    def _tell(self, instance_id: str, message: Freeze | Swap | Thaw) -> None:
        if (entry := self._ledger.entries.get(instance_id)) is not None:
            self._commands.append(Answer(entry.route, message))

    def _publish(self, event: events.ClusterEvent) -> None:
        self._commands.append(Publish(event))

    def validate(self) -> None:
        """Runs are of disjoint cycles, and each ends."""
        members = [(member, run) for run in self._runs.values() for member in run.cycle.members]
        assert len(members) == len(self._busy) and all(self._busy[member] is run for member, run in members)
        for number, run in self._runs.items():
            assert number in self._due and run.epoch == PlanEpoch(self._incarnation, number), f"run {number} never ends"
            assert run.frozen.keys() <= set(run.cycle.members) and run.swapped.keys() <= run.frozen.keys()
            assert run.num_blocks <= run.cycle.num_blocks and not (run.swapped and not run.num_blocks)
        self._due.validate()
        self._resting.validate()


def _less(run: Run, now: float) -> str:
    """Why less came home than lay in the cycle; empty if all of it did."""
    silent = [member for member in run.cycle.members if member not in run.swapped]
    if silent:
        return f"{', '.join(silent)} did not say how much came home"
    if sum(run.swapped.values()) == run.cycle.frees:
        return ""
    if now - run.began_at >= FREEZE_S:
        return f"time was up after {FREEZE_S:g} s"
    if all(blocks == run.num_blocks for blocks in run.swapped.values()):
        return f"one of them could bring home {counted(run.num_blocks, 'rBlock')} only"
    return "the rest came home by itself, its requests ended, or others needed the memory"


def _names(run: Run) -> str:
    """Its members: each owes the next, and the last one the first."""
    return clipped(", ".join(run.cycle.members))
