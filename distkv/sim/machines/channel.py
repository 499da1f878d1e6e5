"""Ways by which messages of a simulated cluster go."""

from __future__ import annotations

from typing import Literal, NamedTuple

from distkv.wire.messages import to_worker as tw
from distkv.wire.messages.envelope import ToWorker

Thread = Literal["steps", "transfers", "links", "main"]


class Channel(NamedTuple):
    """From one process to another, or between a process and one of its worker's threads; `name` is for those that
    have the same ends."""

    source: str
    target: str
    name: str

    @property
    def is_within(self) -> bool:
        """Whether it does not leave its instance, so that nothing is lost on it."""
        return self.source == self.target


def thread_of(message: ToWorker) -> Thread:
    """The thread of a real worker that carries a message out: threads overtake each other."""
    if isinstance(message, tw.Step | tw.Forget):
        return "steps"
    if isinstance(message, tw.Link):
        return "links"
    return "transfers" if isinstance(message, tw.Checksum | tw.Pull) else "main"
