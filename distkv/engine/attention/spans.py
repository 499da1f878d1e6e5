"""The spans a worker lends: their slots, who reads them right now, and what of them is closed to new readers."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from distkv.kernels.exchange import Gate
from distkv.wire.messages.common import SpanRef


@dataclass(slots=True)
class _Closing:
    """`on_revoked` is to be called when no reader is left that came before reader number `before`."""

    before: int
    on_revoked: Callable[[], None]


@dataclass(slots=True, eq=False)
class Standing:
    """Who reads parts of spans again and again, by a gate that it opens itself each time, without asking here. The gate
    is shut as soon as one of the parts is closed. parts: (span, first position, count). reading: spans that were closed
    in the middle of a read, and the reader's number."""

    parts: tuple[tuple[SpanRef, int, int], ...]
    gate: Gate
    reading: list[tuple[SpanRef, int]] = field(default_factory=list)


@dataclass(slots=True)
class _Span:
    """readers: numbers of those that hold it now. closed: positions that new readers find no more. gone: all are.
    standing: those who read it by a gate, and which positions."""

    slots: tuple[int, ...]
    readers: set[int] = field(default_factory=set)
    next_reader: int = 0
    closed: bytearray = field(default_factory=bytearray)
    closing: list[_Closing] = field(default_factory=list)
    gone: bool = False
    standing: dict[Standing, list[tuple[int, int]]] = field(default_factory=dict)

    def shut(self, ref: SpanRef) -> None:
        """Gates to positions that are closed. Who reads by one right now is a reader from here on."""
        for one in [one for one, parts in self.standing.items() if not all(self.is_open(*part) for part in parts)]:
            del self.standing[one]
            if one.gate.shut():
                one.reading.append((ref, self.add_reader()))

    def add_reader(self) -> int:
        """A new reader's number."""
        self.next_reader += 1
        self.readers.add(self.next_reader - 1)
        return self.next_reader - 1

    def is_open(self, first: int, count: int) -> bool:
        """Whether positions [first, first + count) may be read. O(1) while none is closed."""
        return not self.gone and self.closed.find(1, first, first + count) < 0

    def close(self, positions: Sequence[int]) -> None:
        """These positions are for no new reader; all of them if none are named."""
        self.gone = self.gone or not positions
        if positions and not self.closed:
            self.closed = bytearray(len(self.slots))
        for position in positions:
            if position < len(self.closed):
                self.closed[position] = 1

    def take_revoked(self) -> list[_Closing]:
        """What no reader keeps any more, oldest first."""
        oldest = min(self.readers, default=self.next_reader)
        revoked = [one for one in self.closing if one.before <= oldest]
        self.closing = [one for one in self.closing if one.before > oldest]
        return revoked


class SpanRegistry:
    """The spans this worker lends, and who reads them right now. Safe to use from any thread.

    A span is named by id and epoch together, so one epoch of it is never taken for another.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._spans: dict[SpanRef, _Span] = {}

    def grant(self, ref: SpanRef, slots: tuple[int, ...]) -> None:
        """The span exists from now on. Granting it again changes nothing."""
        with self._lock:
            self._spans.setdefault(ref, _Span(tuple(slots)))

    def is_gone(self, ref: SpanRef) -> bool:
        """Whether all of it is closed to new readers: whoever still holds it lets go soon."""
        with self._lock:
            span = self._spans.get(ref)
            return span is None or span.gone

    def revoke(self, ref: SpanRef, on_revoked: Callable[[], None], positions: Sequence[int] = ()) -> None:
        """These positions of the span are gone for new readers, or all of it if none are named. `on_revoked` is called
        once, when the last reader that came before is done: here, or in that reader's thread; readers that come after
        keep nobody waiting. An unknown span counts as revoked."""
        with self._lock:
            span = self._spans.get(ref)
            if span is None:
                revoked = [_Closing(0, on_revoked)]
            else:
                span.close(positions)
                span.shut(ref)
                span.closing.append(_Closing(span.next_reader, on_revoked))
                revoked = self._take_revoked(ref, span)
        for one in revoked:
            one.on_revoked()

    @contextmanager
    def pin(self, ref: SpanRef, first: int = 0, count: int = 0) -> Iterator[tuple[int, ...] | None]:
        """The span's slots, in order; those of positions [first, first + count) keep their content until the block is
        left. None: there is no such span, or one of these positions is closed."""
        with self._lock:
            span = self._spans.get(ref)
            if span is not None and not span.is_open(first, count):
                span = None
            if span is not None:
                reader = span.add_reader()
        if span is None:
            yield None
            return
        try:
            yield span.slots
        finally:
            with self._lock:
                span.readers.remove(reader)
                revoked = self._take_revoked(ref, span)
            for one in revoked:
                one.on_revoked()

    def stand(
        self, parts: Sequence[tuple[SpanRef, int, int]], gate: Gate
    ) -> tuple[Standing, list[tuple[int, ...]]] | None:
        """Read these parts, (span, first position, count), by the gate, which is open, until `leave`; and the slots of
        each span. None when one of the parts is closed."""
        with self._lock:
            spans = [self._spans.get(ref) for ref, _, _ in parts]
            found = [
                span
                for span, (_, first, count) in zip(spans, parts, strict=True)
                if span is not None and span.is_open(first, count)
            ]
            if len(found) < len(parts):
                return None
            standing = Standing(tuple(parts), gate)
            for span, (_, first, count) in zip(found, parts, strict=True):
                span.standing.setdefault(standing, []).append((first, count))
        return standing, [span.slots for span in found]

    def leave(self, standing: Standing) -> None:
        """Called by who reads by the gate, when it does not read: it will not again."""
        revoked: list[_Closing] = []
        with self._lock:
            for ref in {ref for ref, _, _ in standing.parts}:
                span = self._spans.get(ref)
                if span is not None:
                    span.standing.pop(standing, None)
            for ref, reader in standing.reading:
                span = self._spans.get(ref)
                if span is not None:
                    span.readers.discard(reader)
                    revoked += self._take_revoked(ref, span)
            standing.reading = []
        for one in revoked:
            one.on_revoked()

    def pins(self, ref: SpanRef) -> int:
        """How many readers hold the span."""
        with self._lock:
            span = self._spans.get(ref)
            return 0 if span is None else len(span.readers)

    def _take_revoked(self, ref: SpanRef, span: _Span) -> list[_Closing]:
        """With the lock held: what is revoked by now; a span that is gone and unread is forgotten."""
        if span.gone and not span.readers:
            self._spans.pop(ref, None)
        return span.take_revoked() if span.closing else []
