"""The clients of one instance, by the route they came by, and when each was last heard."""

from __future__ import annotations

from distkv.control.timers import Timers

CLIENT_TIMEOUT_S = 10.0
LAST_S = 1.0
"""Of it: as long after everything else it is looked again, when what came meanwhile has been read. An instance that was
stopped or busy finds its clients silent, and their signs of life in its inbox. While it is still reading nobody is
judged: behind a message of millions of parts everybody's signs of life wait for seconds."""
MOST_UNREAD_S = 20.0
"""But not for longer: who keeps an instance reading for ever must not keep alive the requests of who is gone."""


class ClientBook:
    """Clients that sent a request. Who is not heard for CLIENT_TIMEOUT_S may be gone."""

    def __init__(self) -> None:
        self._look_at: Timers[bytes] = Timers()
        self._doubtful: set[bytes] = set()
        self._unread_until: dict[bytes, float] = {}

    def submitted(self, route: bytes, now: float) -> None:
        """A request came by this route."""
        self._heard(route)
        self._look_at.set(route, now + CLIENT_TIMEOUT_S - LAST_S)

    def alive(self, route: bytes, now: float) -> None:
        """Its client says that it is there."""
        if route in self._look_at:
            self.submitted(route, now)

    def gone(self, route: bytes) -> None:
        """Nobody is at its other end any more."""
        self._heard(route)
        self._look_at.cancel(route)

    def silent(self, is_behind: bool, now: float) -> list[bytes]:
        """Routes that nothing was heard of for too long; each is given out once. is_behind: as in `Tick`."""
        silent = []
        for route in self._look_at.take_due(now):
            if is_behind and now < self._unread_until.setdefault(route, now + MOST_UNREAD_S):
                self._look_at.set(route, now + LAST_S)
            elif route in self._doubtful:
                self._heard(route)
                silent.append(route)
            else:
                self._doubtful.add(route)
                self._look_at.set(route, now + LAST_S)
        return silent

    def _heard(self, route: bytes) -> None:
        self._doubtful.discard(route)
        self._unread_until.pop(route, None)

    def next_deadline(self) -> float:
        """When the next one may have been silent for too long."""
        return self._look_at.next_at()
