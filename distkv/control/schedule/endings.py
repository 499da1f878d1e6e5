"""When those that run are expected to end, and what comes free then, by the outputs that have ended here."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from distkv.control.request.sequence import Sequence
from distkv.control.rmanager.state import RManagerState


@dataclass(frozen=True, slots=True)
class Running:
    """A sequence that runs: in how many steps it is expected to end, and the slots that come free then, those that it
    is expected to grow into included."""

    steps: float
    slots: int


def steps_until(free: Iterable[Running], lacking: int) -> float:
    """In how many steps those that end have left `lacking` slots; infinity if all of them have not so many."""
    if lacking <= 0:
        return 0.0
    for one in sorted(free, key=lambda one: one.steps):
        lacking -= one.slots
        if lacking <= 0:
            return one.steps
    return math.inf


def still_to_come(state: RManagerState, seq: Sequence) -> int:
    """Tokens that a sequence is expected to generate yet, a step for each."""
    return state.growing.outputs.still_to_come(seq.num_generated, seq.request.params.max_tokens)


def endings(state: RManagerState) -> list[Running]:
    """All that run."""
    return [Running(still_to_come(state, seq), _frees(state, seq)) for seq in state.running()]


def _frees(state: RManagerState, seq: Sequence) -> int:
    return seq.placement.num_local_slots + max(1, state.growing.growth(seq) - seq.placement.num_spare)
