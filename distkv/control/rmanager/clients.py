"""The clients of one instance, by the route they came by, and when each was last heard."""

from __future__ import annotations

from distkv.control.timers import Timers

CLIENT_TIMEOUT_S = 10.0


class ClientBook:
    """Clients that sent a request. Who is not heard for CLIENT_TIMEOUT_S may be gone."""

    def __init__(self) -> None:
        self._silent_at: Timers[bytes] = Timers()

    def submitted(self, route: bytes, now: float) -> None:
        """A request came by this route."""
        self._silent_at.set(route, now + CLIENT_TIMEOUT_S)

    def alive(self, route: bytes, now: float) -> None:
        """Its client says that it is there."""
        if route in self._silent_at:
            self._silent_at.set(route, now + CLIENT_TIMEOUT_S)

    def gone(self, route: bytes) -> None:
        """Nobody is at its other end any more."""
        self._silent_at.cancel(route)

    def silent(self, now: float) -> list[bytes]:
        """Routes that nothing was heard of for too long; each is given out once."""
        return self._silent_at.take_due(now)

    def next_deadline(self) -> float:
        """When the next one has been silent for too long."""
        return self._silent_at.next_at()
