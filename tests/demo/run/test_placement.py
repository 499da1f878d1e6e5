"""Where the KV of a request lies, found and drawn."""

from __future__ import annotations

import re

from distkv.demo.run.placement import BAR_CELLS, EMPTY, FULL, Placement, draw, find
from distkv.wire.messages.counters import Counters
from distkv.wire.messages.to_client import InstanceStatus, RequestStatus, SlotCounts, SpanStatus, Status


def instance(name: str, *requests: RequestStatus) -> Status:
    status = InstanceStatus(
        instance_id=name,
        state="ready",
        pid=1,
        worker_pid=2,
        block_tokens=16,
        blocks=SlotCounts(total=10, free=10),
        borrowed_blocks=0,
        running=0,
        waiting=0,
        counters=Counters(),
    )
    return Status(instance=status, requests=requests)


def span(name: str, first: int, count: int) -> SpanStatus:
    return SpanStatus(instance_id=name, first_token=first, num_tokens=count)


def test_the_map_shows_every_span_in_order():
    spans = (span("i1", 0, 160), span("i0", 160, 80))
    request = RequestStatus(request_id="r", instance_id="i0", num_tokens=240, spans=spans)
    found = find([instance("i0", request), instance("i1"), instance("i2")], "r")
    assert found == Placement("i0", spans, {"i0": 160, "i1": 160, "i2": 160})
    assert (found.num_tokens, found.tokens_at("i0"), found.tokens_at("i1"), found.tokens_at("i2")) == (240, 80, 160, 0)
    i0, i1, i2, order, whole = (line.plain for line in draw(found))
    assert FULL * (BAR_CELLS // 2) + EMPTY * (BAR_CELLS // 2) in i0 and "80 of 160 tokens (debtor)" in i0
    assert FULL * BAR_CELLS in i1 and "(debtor)" not in i1
    assert EMPTY * BAR_CELLS in i2
    assert order.split()[-2:] == ["i1[0..160)", "i0[160..240)"]
    assert re.fullmatch("1{27}0{13}", whole.split()[-1])
    assert find([instance("i0", request)], "other") is None


def test_a_request_without_kv_can_be_drawn():
    assert next(line.plain for line in draw(Placement("i0", (), {"i0": 16}))).startswith(f"  i0  {EMPTY}")
