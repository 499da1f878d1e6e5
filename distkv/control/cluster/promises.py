"""Requests that were sent to an instance and that its heartbeats do not know yet.

A heartbeat that was on its way when a request was sent says nothing of it, so a promise ends by name: with the
heartbeat that says that the request has arrived.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass

KEPT_HEARTBEATS = 4
"""So many without it, and a request is taken to have gone elsewhere, or to be of an instance that names none."""
MAX_PROMISES = 1024
"""Of one instance; of more the oldest ends."""


@dataclass(slots=True)
class Promise:
    """root: of the request's name. passed: heartbeats since, none of which named it."""

    root: str
    num_blocks: int
    prompt_tokens: int
    passed: int = 0


def root_of(request_id: str) -> str:
    """What a client's names of one request have in common: sent a second time it is `name~...`."""
    return request_id.partition("~")[0]


class Promises:
    """Of one instance, oldest first, and their sums. A heartbeat costs as much as there are and as it names."""

    def __init__(self) -> None:
        self._promises: deque[Promise] = deque()
        self.num_requests = self.num_blocks = self.prompt_tokens = 0

    def add(self, request_id: str, num_blocks: int, prompt_tokens: int) -> None:
        """A request is on its way."""
        if len(self._promises) == MAX_PROMISES:
            self._count(self._promises.popleft(), -1)
        promise = Promise(root_of(request_id), num_blocks, prompt_tokens)
        self._promises.append(promise)
        self._count(promise, 1)

    def heartbeat(self, arrived: Iterable[str]) -> None:
        """Requests by these names have arrived, and count there from now on; of equal ones the oldest. Where none is
        promised there is no need for it."""
        named = Counter(root_of(request_id) for request_id in arrived)
        before, self._promises = self._promises, deque()
        for promise in before:
            promise.passed += 1
            if named[promise.root]:
                named[promise.root] -= 1
                self._count(promise, -1)
            elif promise.passed == KEPT_HEARTBEATS:
                self._count(promise, -1)
            else:
                self._promises.append(promise)

    def clear(self) -> None:
        """None is kept: the instance is gone."""
        self._promises.clear()
        self.num_requests = self.num_blocks = self.prompt_tokens = 0

    def validate(self) -> None:
        """The sums are right, and nothing is less than nothing."""
        assert self.num_requests == len(self._promises), f"{self.num_requests} promises, not {len(self._promises)}"
        for name in ("num_blocks", "prompt_tokens"):
            each = [getattr(promise, name) for promise in self._promises]
            assert min(each, default=0) >= 0, "a promise below 0"
            assert sum(each) == getattr(self, name), f"{name} of all promises is not {getattr(self, name)}"

    def _count(self, promise: Promise, sign: int) -> None:
        self.num_requests += sign
        self.num_blocks += sign * promise.num_blocks
        self.prompt_tokens += sign * promise.prompt_tokens
