"""Messages of ours that no reader would accept: they are not sent, and the log says so once for each kind."""

from __future__ import annotations

import structlog

from distkv.errors import WireError
from distkv.wire.messages.envelope import Control


class UnsentMessages:
    """Reports them."""

    def __init__(self) -> None:
        self._reported: set[str] = set()

    def report(self, body: Control, error: WireError) -> None:
        """`body` was not sent."""
        kind = type(body).__name__
        if kind not in self._reported:
            self._reported.add(kind)
            structlog.get_logger().error("a message cannot be sent", kind=kind, problem=str(error))
