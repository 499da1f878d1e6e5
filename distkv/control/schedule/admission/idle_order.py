"""Those that have not run for a while, oldest first."""

from __future__ import annotations

from distkv.control.request.sequence import Sequence
from distkv.control.schedule.admission.age_order import AgeOrder
from distkv.control.timers import Timers


class IdleOrder:
    """Of sequences that do not run, those that have not for `after_s`, by the clock of whoever looks."""

    def __init__(self, after_s: float) -> None:
        self._after_s = after_s
        self._order = AgeOrder()
        self._unseen: dict[str, Sequence] = {}
        self._young: dict[str, Sequence] = {}
        self._due: Timers[str] = Timers()

    def __contains__(self, seq: Sequence) -> bool:
        return seq in self._order

    @property
    def oldest(self) -> Sequence | None:
        """Of those."""
        return self._order.oldest

    def add(self, seq: Sequence) -> None:
        """It does not run, from now on."""
        self._unseen[seq.request_id] = seq

    def remove(self, seq: Sequence) -> None:
        """It runs, or has ended."""
        self._unseen.pop(seq.request_id, None)
        self._young.pop(seq.request_id, None)
        self._due.cancel(seq.request_id)
        if seq in self._order:
            self._order.remove(seq)

    def look(self, now: float) -> None:
        """Let time pass."""
        for request_id in self._unseen:
            self._due.set(request_id, now + self._after_s)
        self._young.update(self._unseen)
        self._unseen.clear()
        for request_id in self._due.take_due(now):
            self._order.add(self._young.pop(request_id))

    def next_deadline(self) -> float:
        """When the next one has not run for so long."""
        return self._due.next_at()

    def validate(self) -> None:
        """Nobody is forgotten."""
        assert all(request_id in self._due for request_id in self._young)
        self._due.validate()
