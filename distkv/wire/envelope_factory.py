"""Who says it, and because of what: the envelope around every message a process sends."""

from __future__ import annotations

import itertools
import secrets
from typing import TypeVar

from distkv.wire.messages.envelope import Control, Envelope

Sent = TypeVar("Sent", bound=Control)


class EnvelopeFactory:
    """Wraps the messages of one sender; the ids it gives are unique among all senders of that name.

    Safe to share between threads.
    """

    def __init__(self, sender: str) -> None:
        self.sender = sender
        self._prefix = f"{sender}-{secrets.token_hex(4)}"
        self._numbers = itertools.count(1)

    def wrap(self, body: Sent, cause: str = "") -> Envelope[Sent]:
        """An envelope with a fresh id; `cause` is the id of the message that led to this one."""
        return Envelope(id=f"{self._prefix}-{next(self._numbers)}", sender=self.sender, body=body, cause=cause)
