"""Who may go by a request that has waited for long: younger ones that fit, until they have had as much as it needs.

A creditor keeps memory for one request of a peer in the same way: an earmark, which lapses unless the peer asks again.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from distkv.control.schedule.waiting import AGED_S

EARMARK_S = 3.0
"""How long memory is kept for a peer's request; it asks again about once a second."""


class Passing:
    """How much more memory may go by one request."""

    def __init__(self) -> None:
        self._waits = ""
        self._left = 0

    def look(self, request_id: str, size: int) -> None:
        """This one waits, and needs so many rBlocks; one that waited before it counts no more."""
        if request_id != self._waits:
            self._waits, self._left = request_id, size

    def may_pass(self, size: int) -> bool:
        """Whether one of so many rBlocks may go by."""
        return size <= self._left

    def passed(self, size: int) -> None:
        """One did."""
        self._left -= size


@dataclass(frozen=True, slots=True)
class Earmark:
    """rBlocks kept for a peer's request that has waited since `since`."""

    request_id: str
    since: float
    blocks: int
    until: float


class Earmarks:
    """The one earmark of an instance: of all that ask, the request that has waited longest has it."""

    def __init__(self) -> None:
        self._earmark: Earmark | None = None
        self.passing = Passing()

    def look(self, now: float) -> Earmark | None:
        """The earmark that holds."""
        if self._earmark is not None and now >= self._earmark.until:
            self._earmark = None
        return self._earmark

    def ask(self, request_id: str, since: float, blocks: int, now: float) -> None:
        """Keep so many for a request that has waited for long and could not have them; none if it has them now."""
        held = self.look(now)
        if now - since < AGED_S:
            return
        if held is not None and held.request_id != request_id and held.since <= since:
            return
        self._earmark = Earmark(request_id, since, blocks, now + EARMARK_S) if blocks else None
        if blocks:
            self.passing.look(request_id, blocks)

    def kept_from(self, request_id: str, since: float, now: float) -> int:
        """rBlocks that a request that has waited since `since` must leave for another."""
        held = self.look(now)
        return 0 if held is None or held.request_id == request_id or since <= held.since else held.blocks

    def next_deadline(self) -> float:
        """When the earmark lapses."""
        return math.inf if self._earmark is None else self._earmark.until
