"""What a creditor may say on a link for fetching."""

from __future__ import annotations

from typing import Any

import pytest

from distkv.engine.attention.answer_times import AnswerTimes
from distkv.engine.attention.fetch.costs import Costs
from distkv.engine.attention.fetch.link import FetchLink
from distkv.wire.messages.common import Epoch, SpanRef
from distkv.wire.messages.data import Slots, SpanPart

PARTS = (SpanPart(span=SpanRef(span_id="s", epoch=Epoch(1, 1)), index=0, num_blocks=2),)


class Answering:
    """A link whose other end answers any query with this."""

    mapped = None

    def __init__(self, body: bytes) -> None:
        self._body, self.is_aborted = body, False

    def send(self, header: Any, *buffers: memoryview, timeout_s: float) -> None:
        pass

    def recv(self, timeout_s: float) -> tuple[Slots, bytes]:
        return Slots(), self._body

    def abort(self) -> None:
        self.is_aborted = True


@pytest.mark.parametrize("body", [b"", b"7 bytes", bytes(8), bytes(24), (9).to_bytes(8, "little") * 2, b"\xff" * 16])
def test_an_answer_that_cannot_be_ends_the_link_and_nothing_else(body: bytes) -> None:
    answering: Any = Answering(body)
    link = FetchLink(answering, "c", AnswerTimes(1.0), Costs())
    assert link.slots(PARTS, num_slots=8) is None
    assert link.broken and answering.is_aborted


def test_slots_of_a_span_are_read() -> None:
    answering: Any = Answering((3).to_bytes(8, "little") + (7).to_bytes(8, "little"))
    link = FetchLink(answering, "c", AnswerTimes(1.0), Costs())
    found = link.slots(PARTS, num_slots=8)
    assert found is not None and found.tolist() == [3, 7] and not link.broken
