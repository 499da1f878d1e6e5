"""Who is preempted when a sequence stands still for want of a slot: a rule without state."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


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
