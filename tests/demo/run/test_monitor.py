"""What is known of a request while it is answered."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from distkv.demo.run.monitor import RequestMonitor
from distkv.wire.messages.to_client import RequestStatus, SpanStatus, Status
from tests.demo.run.test_placement import instance, span


class Told:
    """Tells one list of statuses after another."""

    def __init__(self, *statuses: Sequence[Status]) -> None:
        self.left = list(statuses)

    def statuses(self) -> Sequence[Status]:
        return self.left.pop(0)


def lies(*spans: SpanStatus) -> Sequence[Status]:
    return [instance("i0", RequestStatus(request_id="r", instance_id="i0", num_tokens=96, spans=spans))]


def test_the_map_is_of_when_most_of_it_lay_somewhere() -> None:
    """Neither of when it waited, nor of when it was given back."""
    whole = (span("i1", 0, 32), span("i0", 32, 64))
    client: Any = Told(lies(), lies(span("i1", 0, 32)), lies(*whole), lies(span("i0", 32, 64)), [instance("i0")])
    monitor = RequestMonitor(client, "r")
    seen = []
    while client.left:
        monitor.poll()
        assert monitor.placement is not None
        seen.append(monitor.placement.num_tokens)
    assert seen == [0, 32, 96, 96, 96] and monitor.placement is not None and monitor.placement.spans == whole


def test_there_is_no_map_of_what_nobody_saw() -> None:
    client: Any = Told([instance("i0")])
    monitor = RequestMonitor(client, "r")
    monitor.poll()
    assert monitor.placement is None
