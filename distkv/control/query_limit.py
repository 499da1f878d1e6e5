"""A bound on queries whose answers take a look at much: who asks in a loop is told when to ask again, and slows nobody.

A query is answered while its route has credit, and all routes together have; both come back with time. One route can
use up a quarter of what all have.
"""

from __future__ import annotations

from collections import OrderedDict

BURST, PER_S = 10, 10.0
"""Queries of one route at once, and in the long run."""
BURST_OF_ALL, PER_S_OF_ALL = 40, 40.0
"""Of all routes: at the two milliseconds that the dearest answer takes, less than a tenth of a core."""
MOST_ROUTES = 1024
"""Routes that are remembered; who asks by more of them is bounded by the credit of all."""


class Credit:
    """Of `burst` queries at most; `per_s` come back."""

    __slots__ = ("_burst", "_left", "_per_s", "_since")

    def __init__(self, burst: int, per_s: float, now: float) -> None:
        self._burst, self._per_s = burst, per_s
        self._left, self._since = float(burst), now

    def wait_s(self, now: float) -> float:
        """Until a query may be answered; 0 if one may be now."""
        self._left = min(self._burst, self._left + max(0.0, now - self._since) * self._per_s)
        self._since = now
        return 0.0 if self._left >= 1 else (1 - self._left) / self._per_s

    def spend(self) -> None:
        """A query is answered."""
        self._left -= 1


class QueryLimit:
    """Of one gManager, or of one rManager."""

    def __init__(self) -> None:
        self._of_all = Credit(BURST_OF_ALL, PER_S_OF_ALL, 0.0)
        self._by_route: OrderedDict[bytes, Credit] = OrderedDict()

    def wait_s(self, route: bytes, now: float) -> float:
        """0 if a query that came by this route is to be answered, which counts; else when to ask again, in seconds."""
        own = self._by_route.get(route)
        if own is None:
            own = self._by_route[route] = Credit(BURST, PER_S, now)
            if len(self._by_route) > MOST_ROUTES:
                self._by_route.popitem(last=False)
        else:
            self._by_route.move_to_end(route)
        wait_s = max(own.wait_s(now), self._of_all.wait_s(now))
        if not wait_s:
            own.spend()
            self._of_all.spend()
        return wait_s
