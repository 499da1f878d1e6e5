"""Who may go by a request that has waited for long: younger ones that fit, until they have had as much as it needs.

A creditor keeps memory for one request of a peer in the same way: an earmark, which lapses unless the peer asks again.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from distkv.control.schedule.admission.waiting import AGED_S

MOST_COUNTED_S = 3600.0
"""Of what a peer says that a request has waited. Those that wait for the memory of several pools wait for each other,
for minutes, and all creditors must agree on which is first."""
EARMARK_S = 1.5
"""How long memory is kept for a peer's request; it asks again about twice a second."""
TURN_S = 10.0
"""For so long memory is kept for requests of one instance, before it must leave that to others for as long."""


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


Asking = tuple[str, str]
"""The instance that serves a request, and the request: what one says of its requests touches no other's."""


@dataclass(frozen=True, slots=True)
class Earmark:
    """rBlocks kept for a peer's request that has waited since `since`. had: of these, what it could have when it asked,
    by `route`."""

    request: Asking
    route: bytes
    since: float
    blocks: int
    had: int
    until: float


class Earmarks:
    """The one earmark of an instance: of all that ask, the request that has waited longest has it.

    How long a request has waited is its instance's word. So it counts up to MOST_COUNTED_S, and an instance may
    have the earmark for TURN_S, whatever it asks for, and then not for as long.
    """

    def __init__(self) -> None:
        self._earmark: Earmark | None = None
        self._told: Earmark | None = None
        self._turns: dict[str, float] = {}  # when each began, in that order
        self.passing = Passing()

    def look(self, now: float) -> Earmark | None:
        """The earmark that holds."""
        if self._earmark is not None and now >= self._earmark.until:
            self._earmark = None
        return self._earmark

    def ask(self, request: Asking, route: bytes, waited_s: float, blocks: int, had: int, now: float) -> None:
        """Keep so many for a request that has waited for long and could not have them; none if it has them now, as only
        the connection that it was kept for can say."""
        held, since = self.look(now), self.since(waited_s, now)
        if not blocks:
            if held is not None and (held.request, held.route) == (request, route):
                self._earmark = None
            return
        is_behind = held is not None and held.request != request and held.since <= since
        if waited_s < AGED_S or is_behind or (until := self._turn_until(request[0], now)) <= now:
            return
        self._earmark = Earmark(request, route, since, blocks, had, min(until, now + EARMARK_S))
        self.passing.look("/".join(request), blocks)

    @staticmethod
    def since(waited_s: float, now: float) -> float:
        """Since when a request counts as waiting, by the word of its instance."""
        return now - min(waited_s, MOST_COUNTED_S)

    def kept_from(self, request: Asking, since: float, now: float) -> int:
        """rBlocks that a request that has waited since `since` must leave for another."""
        held = self.look(now)
        return 0 if held is None or held.request == request or since <= held.since else held.blocks

    def take_vacant(self, lendable_to: Callable[[str, str], int], now: float) -> Earmark | None:
        """The earmark, as soon as enough can be lent for its request to begin, and more than it has; once for each
        time that the request asked."""
        held = self.look(now)
        if held is None or held is self._told or lendable_to(*held.request) < max(held.blocks, held.had + 1):
            return None
        self._told = held
        return held

    def next_deadline(self) -> float:
        """When the earmark lapses."""
        return math.inf if self._earmark is None else self._earmark.until

    def _turn_until(self, instance_id: str, now: float) -> float:
        """Until when this instance may have the earmark; in the past while it must leave it to others."""
        while self._turns and now >= (first := next(iter(self._turns.items())))[1] + 2 * TURN_S:
            del self._turns[first[0]]
        return self._turns.setdefault(instance_id, now) + TURN_S
