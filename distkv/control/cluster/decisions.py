"""What a gManager decided of late and what came of it, for whoever asks; the newest of it, and how much there was."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from distkv import events
from distkv.wire.messages.common import clipped
from distkv.wire.messages.to_client import DgfmRunStatus, PlanStatus

MAX_PLANS = 64
MAX_RUNS = 16


@dataclass(slots=True)
class Plan:
    """A move that was planned at `at`, and what it brought, once that was judged, or why it was dropped."""

    at: float
    planned: events.MovePlanned
    achieved_tokens_per_s: float | None = None
    dropped: str = ""

    def is_meant_by(self, told: events.MoveJudged | events.MoveDropped) -> bool:
        """Whether this is what was judged or dropped."""
        mine, one = self.planned, told
        return (
            self.achieved_tokens_per_s is None
            and not self.dropped
            and (
                (mine.request_id, mine.debtor, mine.destination, mine.blocks)
                == (one.request_id, one.debtor, one.destination, one.blocks)
            )
        )


@dataclass(slots=True)
class Run:
    """A run of DGFM that began at `at`; ended: how, once it has."""

    at: float
    begun: events.DgfmBegun
    ended: events.DgfmEnded | None = None


class Decisions:
    """Made of the events that a gManager publishes. Each costs at most what is remembered."""

    def __init__(self) -> None:
        self._plans: deque[Plan] = deque(maxlen=MAX_PLANS)
        self._runs: deque[Run] = deque(maxlen=MAX_RUNS)
        self.num_runs = 0
        self.num_plans = 0

    def note(self, event: events.ClusterEvent, now: float) -> None:
        """Something was decided or judged; of other events nothing is remembered."""
        match event:
            case events.MovePlanned():
                self._plans.append(Plan(now, event))
                self.num_plans += 1
            case events.MoveJudged():
                if (plan := self._plan_of(event)) is not None:
                    plan.achieved_tokens_per_s = event.achieved_tokens_per_s
            case events.MoveDropped():
                if (plan := self._plan_of(event)) is not None:
                    plan.dropped = event.why
            case events.DgfmBegun():
                self._runs.append(Run(now, event))
                self.num_runs += 1
            case events.DgfmEnded():
                for run in self._runs:
                    if run.begun.run == event.run:
                        run.ended = event

    def _plan_of(self, told: events.MoveJudged | events.MoveDropped) -> Plan | None:
        return next((plan for plan in self._plans if plan.is_meant_by(told)), None)

    def plans(self, now: float) -> tuple[PlanStatus, ...]:
        """As a message has them, the newest first."""
        return tuple(
            PlanStatus(
                request_id=plan.planned.request_id,
                debtor_id=plan.planned.debtor,
                destination=plan.planned.destination,
                num_blocks=plan.planned.blocks,
                ago_s=max(0.0, now - plan.at),
                predicted_tokens_per_s=plan.planned.gain_tokens_per_s,
                achieved_tokens_per_s=plan.achieved_tokens_per_s,
                dropped=clipped(plan.dropped),
            )
            for plan in reversed(self._plans)
        )

    def runs(self, now: float) -> tuple[DgfmRunStatus, ...]:
        """As a message has them, the newest first."""
        return tuple(
            DgfmRunStatus(
                members=run.begun.members,
                ago_s=max(0.0, now - run.at),
                predicted_blocks=run.begun.blocks,
                home_blocks=None if run.ended is None else run.ended.blocks,
                why="" if run.ended is None else clipped(run.ended.why),
            )
            for run in reversed(self._runs)
        )
