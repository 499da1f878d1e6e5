"""When each part of a layer's DistAttention ended, for those who want to know where its time goes."""

from __future__ import annotations

from typing import NamedTuple


class LayerTimes(NamedTuple):
    """Of one layer of one microbatch, on the monotonic clock. sent_s: all queries had left by then. attended_s:
    own keys were attended to. collected_s: the last partial was there."""

    layer: int
    begun_s: float
    sent_s: float
    attended_s: float
    collected_s: float
    merged_s: float


class ServedTimes(NamedTuple):
    """At a creditor, likewise: when the queries of a layer had come, and when attention over them was computed."""

    layer: int
    received_s: float
    attended_s: float
