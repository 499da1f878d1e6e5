"""A profile with round numbers, and traces."""

from __future__ import annotations

from typing import Any

import msgspec

from distkv.sim.spec import SimSpec
from distkv.sim.trace import TraceRequest
from distkv.wire.messages.profile import LinkProfile, Point, Profile

LINK = LinkProfile(round_trip_s=1e-4, bytes_per_s=1e9, read_bytes_per_s=1e9)
PROFILE = Profile(
    model="m",
    device="round numbers",
    layers=10,
    block_tokens=16,
    query_bytes=1000,
    partial_bytes=2000,
    kv_bytes=1000,
    step=(Point(1, 0.020), Point(101, 0.030)),
    attention=(Point(1000, 0.001),),
    prefill=(Point(1, 0.020), Point(1001, 0.120)),
    prefill_attention=(Point(1, 1e-6), Point(1001, 1e-4)),
    serving=(Point(1000, 0.002),),
    serving_prefill=(Point(1, 2e-6), Point(1001, 2e-4)),
    links={"host": LINK},
)


def profile(**fields: Any) -> Profile:
    """PROFILE with other fields."""
    return msgspec.structs.replace(PROFILE, **fields)


def spec(**fields: Any) -> SimSpec:
    """Two instances of 1,600 tokens, in which messages take no time, unless other fields say else."""
    usual = {"instances": 2, "kv_tokens": 1600, "profile": PROFILE, "message_s": 0.0, "pipe_s": 0.0, "checks": True}
    return SimSpec(**usual | fields)


def trace(*requests: tuple[float, int, int]) -> list[TraceRequest]:
    """Of arrivals, prompt and output tokens."""
    return [TraceRequest(*one) for one in requests]
