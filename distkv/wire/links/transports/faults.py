"""Trouble for the in-process link, programmed by tests: fail, corrupt, delay, or stay pending."""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from typing import Literal

Verb = Literal["send", "recv", "read"]


class Faults:
    """What goes wrong with the verbs of a link. calls: how often each was begun. Safe to use from any thread."""

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()
        self._changed = threading.Condition()
        self._errors: dict[str, deque[Exception]] = {}
        self._spoiled: Counter[str] = Counter()
        self._delays: dict[str, float] = {}
        self._held: set[str] = set()

    def fail(self, verb: Verb, error: Exception, times: int = 1) -> None:
        """The next `times` calls raise `error`."""
        with self._changed:
            self._errors.setdefault(verb, deque()).extend([error] * times)

    def corrupt(self, verb: Verb, times: int = 1) -> None:
        """The next `times` calls that carry bytes have one of them wrong."""
        with self._changed:
            self._spoiled[verb] += times

    def delay(self, verb: Verb, delay_s: float) -> None:
        """Every call takes this much longer from now on; 0 ends it."""
        with self._changed:
            self._delays[verb] = delay_s

    def hold(self, verb: Verb) -> None:
        """Calls stay pending until `release`, their timeout, or the end of the link."""
        with self._changed:
            self._held.add(verb)

    def release(self, verb: Verb) -> None:
        with self._changed:
            self._held.discard(verb)
            self._changed.notify_all()

    def wait_calls(self, verb: Verb, count: int, timeout_s: float) -> bool:
        """Wait until `verb` was begun `count` times; False if it was not within `timeout_s`."""
        with self._changed:
            return self._changed.wait_for(lambda: self.calls[verb] >= count, timeout_s)

    def interrupt(self) -> None:
        """Called by the link when it ends: whoever is held looks again."""
        with self._changed:
            self._changed.notify_all()

    def meet(self, verb: str, deadline: float | None, ended: Callable[[], bool]) -> bool:
        """Called by the link before a verb: raise, wait, or neither. False when `deadline` passed meanwhile."""
        with self._changed:
            self.calls[verb] += 1
            self._changed.notify_all()
            if errors := self._errors.get(verb):
                raise errors.popleft()
            now = time.monotonic()
            until = now + self._delays.get(verb, 0.0)
            while not ended() and (verb in self._held or time.monotonic() < until):
                now = time.monotonic()
                if deadline is not None and now >= deadline:
                    return False
                ends = [t for t in (deadline, until if verb not in self._held else None) if t is not None]
                self._changed.wait(min(ends) - now if ends else None)
        return True

    def spoil(self, verb: str, views: Sequence[memoryview]) -> None:
        """Called by the link with the bytes of a verb."""
        target = next((view.cast("B") for view in views if view.nbytes), None)
        with self._changed:
            if target is None or not self._spoiled[verb]:
                return
            self._spoiled[verb] -= 1
        target[len(target) // 2] ^= 0x01
