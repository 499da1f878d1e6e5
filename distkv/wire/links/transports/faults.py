"""Trouble for the in-process link, programmed by tests: fail, corrupt, delay, stay pending, or be overtaken."""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

Verb = Literal["send", "recv", "read"]


@dataclass(eq=False, slots=True)
class Call:
    """One use of a verb, and what it meets: an error, or a wait until then. is_held: until `release`."""

    verb: str
    error: Exception | None
    until: float
    is_held: bool


class Faults:
    """What goes wrong with the verbs of a link. calls: how often each was begun. Safe to use from any thread."""

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()
        self._changed = threading.Condition()
        self._errors: dict[str, deque[Exception]] = {}
        self._spoiled: Counter[str] = Counter()
        self._delays: dict[str, float] = {}
        self._held: set[str] = set()
        self._next_held: Counter[str] = Counter()
        self._held_calls: list[Call] = []

    def fail(self, verb: Verb, error: Exception, times: int = 1) -> None:
        """The next `times` calls raise `error`."""
        with self._changed:
            self._errors.setdefault(verb, deque()).extend([error] * times)

    def corrupt(self, verb: Verb) -> None:
        """The next call that carries bytes has one of them wrong."""
        with self._changed:
            self._spoiled[verb] += 1

    def delay(self, verb: Verb, delay_s: float) -> None:
        """Every call takes this much longer from now on; 0 ends it."""
        with self._changed:
            self._delays[verb] = delay_s

    def hold(self, verb: Verb) -> None:
        """Calls stay pending until `release`, their timeout, or the end of the link."""
        with self._changed:
            self._held.add(verb)

    def hold_next(self, verb: Verb) -> None:
        """Only the next call stays pending: later ones overtake it."""
        with self._changed:
            self._next_held[verb] += 1

    def release(self, verb: Verb) -> None:
        with self._changed:
            self._held.discard(verb)
            self._next_held[verb] = 0
            for call in self._held_calls:
                call.is_held = call.is_held and call.verb != verb
            self._held_calls = [call for call in self._held_calls if call.is_held]
            self._changed.notify_all()

    def wait_calls(self, verb: Verb, count: int, timeout_s: float) -> bool:
        """Wait until `verb` was begun `count` times; False if it was not within `timeout_s`."""
        with self._changed:
            return self._changed.wait_for(lambda: self.calls[verb] >= count, timeout_s)

    def interrupt(self) -> None:
        """Called when an end of the link ends: whoever is held looks again."""
        with self._changed:
            self._changed.notify_all()

    def begin(self, verb: str) -> Call:
        """Called by the link when a verb begins."""
        with self._changed:
            self.calls[verb] += 1
            errors = self._errors.get(verb)
            error = errors.popleft() if errors else None
            call = Call(verb, error, time.monotonic() + self._delays.get(verb, 0.0), self._next_held[verb] > 0)
            if call.is_held:
                self._next_held[verb] -= 1
                self._held_calls.append(call)
            self._changed.notify_all()
            return call

    def meet(self, call: Call, deadline: float, ended: Callable[[], bool]) -> bool:
        """Called by the link before the verb does what it is for: raise, wait, or neither. False when `deadline` passed
        meanwhile; it can be called again then."""
        with self._changed:
            if call.error is not None:
                raise call.error
            while not ended():
                is_held = call.is_held or call.verb in self._held
                now = time.monotonic()
                if not is_held and now >= call.until:
                    break
                if now >= deadline:
                    return False
                self._changed.wait((deadline if is_held else min(deadline, call.until)) - now)
        return True

    def spoil(self, verb: str, views: Sequence[memoryview]) -> None:
        """Called by the link with the bytes of a verb."""
        target = next((view.cast("B") for view in views if view.nbytes), None)
        with self._changed:
            if target is None or not self._spoiled[verb]:
                return
            self._spoiled[verb] -= 1
        target[len(target) // 2] ^= 0x01
