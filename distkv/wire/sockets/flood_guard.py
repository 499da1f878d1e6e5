"""A bound on what one connection may send: ZeroMQ reads as fast as it comes, into memory without a limit of its own."""

from __future__ import annotations

QUOTA_MESSAGES = 20_000
QUOTA_BYTES = 1280 * 2**20
QUOTA_S = 1.0
"""Far above what a gateway with thousands of streams sends, and what waits after a pause of some seconds; a thousand
prompts of 1 MiB may come together."""
LEAST_HEADER_BYTES = 2
"""What ZeroMQ writes before a frame at least."""
BARRED_S = 5.0
"""How long nothing is taken of a route whose connection was shut: what had come before, or what comes by the next."""


class FloodGuard:
    """Counts what each route sent in the current QUOTA_S. Cost per message: one entry of a dict."""

    def __init__(self, messages: int = QUOTA_MESSAGES, size_bytes: int = QUOTA_BYTES) -> None:
        self._messages, self._bytes = messages, size_bytes
        self._ends_s = 0.0
        self._sent: dict[bytes, tuple[int, int]] = {}
        self._flooding: set[bytes] = set()
        self._barred: dict[bytes, float] = {}

    def admits(self, route: bytes, size_bytes: int, now_s: float, *, messages: int = 1) -> bool:
        """Count a message, or several; False if its route has sent more than its quota, or is barred."""
        if now_s >= self._ends_s:
            self._ends_s = now_s + QUOTA_S
            self._sent.clear()
            self._flooding.clear()
            self._barred = {one: until_s for one, until_s in self._barred.items() if now_s < until_s}
        if route in self._barred:
            return False
        sent, sent_bytes = self._sent.get(route, (0, 0))
        sent, sent_bytes = sent + messages, sent_bytes + size_bytes + messages * LEAST_HEADER_BYTES
        self._sent[route] = sent, sent_bytes
        if sent <= self._messages and sent_bytes <= self._bytes:
            return True
        self._flooding.add(route)
        return False

    def is_flooding(self, route: bytes) -> bool:
        """Whether this route has sent more than its quota and is not barred yet."""
        return route in self._flooding

    def bar(self, route: bytes, now_s: float) -> int:
        """Admit nothing of a route for BARRED_S; returns how many bytes were taken of it in this QUOTA_S."""
        self._flooding.discard(route)
        self._barred[route] = now_s + BARRED_S
        return self._sent.get(route, (0, 0))[1]
