"""A Step at a modelled engine: still to be computed, known by what it asks for, and under way."""

from __future__ import annotations

from dataclasses import dataclass, field

from distkv.sim.timed.agenda import Entry
from distkv.sim.timed.engine.step_work import StepWork
from distkv.wire.messages import from_worker as fw
from distkv.wire.messages import to_worker as tw


@dataclass(slots=True)
class Todo:
    """A Step, so many positions further than it says."""

    step: tw.Step
    ahead: int = 0

    @property
    def step_id(self) -> int:
        """By which it is answered."""
        return self.step.step_id + self.ahead

    def further(self, positions: int) -> Todo:
        """The same, so many positions further."""
        return Todo(self.step, self.ahead + positions)


@dataclass(slots=True)
class Known:
    """What a Step asks of the engine, and what is answered if nothing of it is lost."""

    step: tw.Step
    seqs: list[tw.SeqStep]
    work: StepWork
    results: tuple[fw.SeqResult, ...] = ()


@dataclass(slots=True, eq=False)
class Running:
    """A step under way. factor: how many times as long it takes as the profile says. owed_s: what it takes longer for
    debtors. parts: what is still to come before it ends. ends: when it has no creditors. own_end_s: when attention here
    ends. lost: by sequence."""

    todo: Todo
    known: Known
    work: StepWork
    began_s: float
    factor: float
    owed_s: float
    parts: int = 0
    ends: Entry | None = None
    own_end_s: float = 0.0
    lost: dict[int, set[str]] = field(default_factory=dict)
