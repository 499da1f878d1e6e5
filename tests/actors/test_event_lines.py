"""EventLines: every event is a line, in order, a few in one turn of the event loop, and not too many of a kind."""

from __future__ import annotations

import asyncio
from itertools import pairwise

from structlog.testing import capture_logs

from distkv import events
from distkv.actors.event_lines import BURST_LINES, LINES_IN_A_TURN, EventLines
from distkv.clock import ManualClock


def cancelled(lines: EventLines, count: int) -> None:
    for index in range(count):
        lines.publish(events.Cancelled(request_id=str(index)), "why")


async def test_many_lines_take_several_turns_of_the_event_loop() -> None:
    lines = EventLines(ManualClock(5.0))
    seen: list[int] = []
    with capture_logs() as written:
        cancelled(lines, 3 * LINES_IN_A_TURN + 1)
        while len(written) <= 3 * LINES_IN_A_TURN:
            seen.append(len(written))
            await asyncio.sleep(0)
        await asyncio.sleep(0)
        lines.publish(events.Cancelled(request_id="last"), "")
    assert max(after - before for before, after in pairwise(seen)) == LINES_IN_A_TURN == seen[0]
    wanted = [*map(str, range(3 * LINES_IN_A_TURN + 1)), "last"]
    assert [line["request_id"] for line in written] == wanted and written[0]["cause"] == "why"


async def test_what_anybody_can_cause_fills_no_log() -> None:
    clock = ManualClock(5.0)
    lines = EventLines(clock)
    with capture_logs() as written:
        cancelled(lines, BURST_LINES + 500)
        lines.publish(events.Failed(request_id="r", reason="x"), "")
        lines.close()
        clock.advance(1.0)
        lines.publish(events.Cancelled(request_id="r"), "")
    assert [line["event"] for line in written] == ["cancelled"] * BURST_LINES + ["failed", "cancelled"]
    assert written[-1]["left_out"] == 500
