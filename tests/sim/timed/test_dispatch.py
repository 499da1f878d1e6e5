"""Where requests go that come while heartbeats are on their way."""

from __future__ import annotations

import pytest

from distkv import events
from distkv.sim.run import simulate
from tests.sim.timed.parts import spec, trace

PROMPT, OUTPUT = 1200, 4


def sent_to(at_s: float, gap_s: float) -> list[str]:
    """Where two go that take most of a pool each, the second after `gap_s`; messages take five milliseconds."""
    requests = trace((at_s, PROMPT, OUTPUT), (at_s + gap_s, PROMPT, OUTPUT))
    result = simulate(requests, spec(instances=4, message_s=0.005, checks=False, keep_events=True))
    accepted = {event.request_id: name for _, name, event in result.events if isinstance(event, events.Accepted)}
    assert accepted.keys() == {"r0", "r1"}, "nobody was sent on"
    return [accepted["r0"], accepted["r1"]]


@pytest.mark.parametrize("gap_s", [0.0005, 0.01, 0.2])
def test_a_heartbeat_that_has_missed_a_request_does_not_send_the_next_one_after_it(gap_s: float) -> None:
    """Whenever in a heartbeat's period they come."""
    for phase in range(50):
        first, second = sent_to(2.0 + 0.01 * phase, gap_s)
        assert first != second, f"{phase}: three others are empty"
