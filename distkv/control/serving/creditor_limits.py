"""What a debtor knows of its creditors' limits on serving, from their grants and refusals (000 §4.6)."""

from __future__ import annotations

from distkv.control.timers import Timers
from distkv.wire.messages.to_rmanager import Granted, Refused

NEAR = 0.8
"""Of a creditor's limit: from there on others are asked first."""
FRESH_S = 5.0
"""For so long what a grant said is taken for true."""
LONGEST_S = 2.0
"""For so long a creditor's word keeps it from being asked, at most: once its own requests have ended it lends again,
and nobody is told."""


class CreditorLimits:
    """Of the creditors of one instance, as they said last; what is old is forgotten."""

    def __init__(self) -> None:
        self._is_full: dict[str, bool] = {}
        self._due: Timers[str] = Timers()

    def granted(self, creditor_id: str, message: Granted, now: float) -> None:
        """It serves more from now on."""
        limit = message.max_serve_fraction
        if limit < 1 and message.serve_fraction >= NEAR * limit:
            self._note(creditor_id, False, now + FRESH_S)
        else:
            self.forget(creditor_id)

    def refused(self, creditor_id: str, message: Refused, now: float) -> None:
        """It lends nothing, perhaps because it serves enough."""
        if message.retry_after_s > 0:
            self._note(creditor_id, True, now + min(LONGEST_S, message.retry_after_s))

    def forget(self, creditor_id: str) -> None:
        """Nothing is known of it any more."""
        self._is_full.pop(creditor_id, None)
        self._due.cancel(creditor_id)

    def tick(self, now: float) -> None:
        """What was said some time ago says nothing now."""
        for creditor_id in self._due.take_due(now):
            del self._is_full[creditor_id]

    def next_deadline(self) -> float:
        """When `tick` has something to do."""
        return self._due.next_at()

    def is_full(self, creditor_id: str) -> bool:
        """Whether it is not to be asked now."""
        return self._is_full.get(creditor_id, False)

    def is_near(self, creditor_id: str) -> bool:
        """Whether others are better asked first."""
        return creditor_id in self._is_full

    def validate(self) -> None:
        """All of it is forgotten at some time."""
        assert all(creditor_id in self._due for creditor_id in self._is_full), "a limit would hold for ever"
        self._due.validate()

    def _note(self, creditor_id: str, is_full: bool, until: float) -> None:
        self._is_full[creditor_id] = is_full
        self._due.set(creditor_id, until)
