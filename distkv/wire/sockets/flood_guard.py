"""A bound on what one connection may send: ZeroMQ reads as fast as it comes, into memory without a limit of its own."""

from __future__ import annotations

QUOTA_MESSAGES = 20_000
QUOTA_BYTES = 256 * 2**20
QUOTA_S = 1.0
"""Far above what a gateway with thousands of streams sends, and what waits after a pause of some seconds."""


class FloodGuard:
    """Counts what each route sent in the current QUOTA_S. Cost per message: one entry of a dict."""

    def __init__(self, messages: int = QUOTA_MESSAGES, size_bytes: int = QUOTA_BYTES) -> None:
        self._messages, self._bytes = messages, size_bytes
        self._ends_s = 0.0
        self._sent: dict[bytes, tuple[int, int]] = {}
        self._has_refused = False
        self._reported: set[bytes] = set()

    @property
    def has_refused(self) -> bool:
        """Whether some route has sent more than its quota."""
        return self._has_refused

    def admits(self, route: bytes, size_bytes: int, now_s: float) -> bool:
        """Count a message; False if its route has sent more than its quota."""
        if now_s >= self._ends_s:
            self._ends_s = now_s + QUOTA_S
            self._has_refused = False
            self._sent.clear()
            self._reported.clear()
        messages, total_bytes = self._sent.get(route, (0, 0))
        messages, total_bytes = messages + 1, total_bytes + size_bytes
        self._sent[route] = messages, total_bytes
        if messages <= self._messages and total_bytes <= self._bytes:
            return True
        self._has_refused = True
        return False

    def sent_bytes(self, route: bytes) -> int:
        """What a route has sent in this time."""
        return self._sent.get(route, (0, 0))[1]

    def is_first_report(self, route: bytes) -> bool:
        """True once for each route in this time."""
        is_first = route not in self._reported
        self._reported.add(route)
        return is_first
