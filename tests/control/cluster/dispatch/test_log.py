"""DispatchLog: where requests went of late, and by what."""

from __future__ import annotations

from distkv.control.cluster.dispatch.log import MAX_KEPT, DispatchLog
from distkv.control.cluster.ledger import Entry
from distkv.wire.messages.to_gmanager import Locate
from tests.control.parts import make_member

VIEW = Entry(make_member("i1", free_blocks=8), 0.0).view()


def test_the_last_dispatch_counts_and_the_oldest_are_forgotten() -> None:
    log = DispatchLog()
    for number in range(MAX_KEPT + 1):
        log.note(Locate(request_id=f"r{number}", num_tokens=30, exclude=("i0",)), VIEW, 3, 10.0)
    log.note(Locate(request_id="r1"), VIEW, 2, 11.0)
    assert log.find("r0", 12.0).instance_id == ""
    first, again = log.find("r2", 12.0), log.find("r1", 12.0)
    assert (first.instance_id, first.ago_s, first.num_tokens, first.num_ready, first.excluded) == ("i1", 2.0, 30, 3, 1)
    assert first.free_tokens == VIEW.room_tokens > 0
    assert (again.ago_s, again.num_ready) == (1.0, 2)


def test_a_choice_of_a_request_is_found_by_the_request() -> None:
    log = DispatchLog()
    for name in ("a-1", "a-2", "ab", "r", "r~1"):
        log.note(Locate(request_id=name), VIEW, 1, 10.0)
    assert log.find("r", 10.0).request_id == "r~1"
    assert log.find("a", 10.0).request_id == "a-2" and log.find("b", 10.0).request_id == ""
