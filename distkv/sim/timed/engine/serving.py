"""A creditor's side of a modelled engine: it attends to what was lent, for several debtors at once, the slower."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from distkv.sim.timed.agenda import Action, Agenda
from distkv.sim.timed.sharing import Job, Resource, Sharing
from distkv.wire.messages.common import SpanRef
from distkv.wire.messages.from_worker import Revoked
from distkv.wire.messages.to_worker import Grant, RemoteSpan, Revoke


class SpanBook:
    """Spans that were lent, and who reads or fills them now: what is revoked is gone when the last of these is done.

    revoked: what to call then.
    """

    def __init__(self, revoked: Callable[[Revoked], None]) -> None:
        self._revoked = revoked
        self._spans: dict[str, SpanRef] = {}
        self._closed: dict[str, set[int]] = {}
        self._pins: dict[str, int] = {}
        self._waiting: dict[str, list[Revoked]] = {}

    def grant(self, grant: Grant) -> None:
        """A span exists from now on."""
        self._spans[grant.span.span_id] = grant.span

    def has(self, span: SpanRef) -> bool:
        """Whether it exists, in this epoch."""
        return self._spans.get(span.span_id) == span

    def is_readable(self, part: RemoteSpan) -> bool:
        """Whether all of a part of a span can be read."""
        if not self.has(part.span):
            return False
        closed = self._closed.get(part.span.span_id)
        return not closed or closed.isdisjoint(range(part.index, part.index + part.num_blocks))

    def revoke(self, revoke: Revoke) -> None:
        """A span, or these positions of it, exist no more for new readers."""
        name = revoke.span.span_id
        if revoke.positions:
            self._closed.setdefault(name, set()).update(revoke.positions)
        else:
            self._spans.pop(name, None)
            self._closed.pop(name, None)
        answer = Revoked(span=revoke.span, positions=revoke.positions)
        if self._pins.get(name):
            self._waiting.setdefault(name, []).append(answer)
        else:
            self._revoked(answer)

    def pin(self, span_ids: Iterable[str]) -> None:
        """Somebody reads or fills them."""
        for name in span_ids:
            self._pins[name] = self._pins.get(name, 0) + 1

    def unpin(self, span_ids: Iterable[str]) -> None:
        """And is done."""
        for name in span_ids:
            self._pins[name] -= 1
            if not self._pins[name]:
                del self._pins[name]
                for answer in self._waiting.pop(name, ()):
                    self._revoked(answer)


@dataclass(slots=True, eq=False)
class Served:
    """A step of a debtor at its creditor. slowing_s: what own steps are to take longer for it; 0 once they do."""

    job: Job
    slowing_s: float
    spans: tuple[str, ...]
    lost: Action


class Server:
    """What one engine computes for debtors. serve_s: the time in which it did."""

    def __init__(self, agenda: Agenda, spans: SpanBook) -> None:
        self._agenda = agenda
        self._spans = spans
        self._sharing = Sharing(agenda)
        self._engine = Resource()
        self._served: dict[Served, None] = {}
        self._since_s = self._total_s = 0.0

    @property
    def is_serving(self) -> bool:
        """Whether it computes something now."""
        return bool(self._served)

    @property
    def serve_s(self) -> float:
        """Until now."""
        return self._total_s + (self._agenda.now() - self._since_s if self._served else 0.0)

    def slow_down(self, factor: float) -> None:
        """Everything takes so many times as long as it would."""
        self._engine.capacity = 1.0 / factor
        self._sharing.changed(self._engine)

    def serve(self, serving_s: float, slowing_s: float, spans: Iterable[str], done: Action, lost: Action) -> None:
        """Attend for a debtor's step, which takes so long for one alone; then comes `done`, or `lost` if this dies."""
        pinned = tuple(spans)
        self._spans.pin(pinned)
        if not self._served:
            self._since_s = self._agenda.now()
        job = self._sharing.begin(serving_s, (self._engine,), lambda: self._finish(one, done))
        one = Served(job, slowing_s, pinned, lost)
        self._served[one] = None

    def take_slowing_s(self) -> float:
        """What an own step that computes now takes longer for those served now, as far as no step before did."""
        now, found = self._agenda.now(), 0.0
        for one in self._served:
            if one.slowing_s:
                left = one.job.left(now) / one.job.work if one.job.work else 1.0
                found += one.slowing_s * left
                one.slowing_s = 0.0
        return found

    def die(self) -> None:
        """Nobody is served any more."""
        while self._served:
            one = next(iter(self._served))
            self._sharing.abort(one.job)
            del self._served[one]
            one.lost()

    def _finish(self, one: Served, done: Action) -> None:
        del self._served[one]
        if not self._served:
            self._total_s += self._agenda.now() - self._since_s
        self._spans.unpin(one.spans)
        done()
