"""How often what holds in one machine is checked: after every event, unless the cluster is large."""

from __future__ import annotations

LARGE = 50
"""A check costs what its members cost; checks of more than these cost an event as much as checks of so many."""


def is_checked(num_events: int, num_members: int) -> bool:
    """Whether to check after the event of this number."""
    return num_events % max(1, num_members // LARGE) == 0
