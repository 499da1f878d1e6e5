"""Profiles with numbers that can be worked by hand."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from distkv.wire.messages.profile import LinkProfile, Point, Profile

MS, US = 1e-3, 1e-6
HOST = LinkProfile(round_trip_s=50 * US, bytes_per_s=1e8, read_bytes_per_s=1e9, busy_round_trip_s=100 * US)
NETWORK = LinkProfile(round_trip_s=500 * US, bytes_per_s=1e7, read_bytes_per_s=1e8)


def make_profile(**fields: Any) -> Profile:
    """Ten layers. A step takes 10 ms and 1 ms for each sequence but the first, 10 µs for a token of context. Queries of
    a row and its partial are 400 bytes in a layer, so that a row takes 4 µs on a host's link; keys and values of a
    token are 100 bytes. Serving a token takes 20 µs."""
    known: dict[str, Any] = {
        "model": "m",
        "device": "cpu",
        "layers": 10,
        "block_tokens": 16,
        "query_bytes": 100,
        "partial_bytes": 300,
        "kv_bytes": 100,
        "step": (Point(1, 10 * MS), Point(11, 20 * MS)),
        "attention": (Point(1000, 10 * MS),),
        "prefill": (Point(10, 10 * MS), Point(100, 100 * MS)),
        "prefill_attention": (Point(1, 10 * US), Point(101, 110 * US)),
        "serving": (Point(1000, 20 * MS),),
        "serving_prefill": (Point(1, 20 * US), Point(101, 220 * US)),
        "links": {"host": HOST, "network": NETWORK},
    }
    return Profile(**known | fields)


_sizes = st.sets(st.integers(1, 2**20), min_size=1, max_size=6)
_seconds = st.lists(st.floats(1e-6, 10), min_size=6, max_size=6)
curves = st.builds(
    lambda sizes, seconds: tuple(Point(size, one) for size, one in zip(sorted(sizes), sorted(seconds), strict=False)),
    _sizes,
    _seconds,
)
"""Whatever can be measured."""
_links = st.builds(
    LinkProfile,
    round_trip_s=st.floats(0, 0.1),
    bytes_per_s=st.floats(1e3, 1e12),
    read_bytes_per_s=st.floats(1e3, 1e12),
    busy_round_trip_s=st.floats(0, 0.1),
)
profiles = st.builds(
    make_profile,
    **{name: curves for name in ("step", "attention", "prefill", "prefill_attention", "serving", "serving_prefill")},
    remote_step=st.just(()) | curves,
    remote_prefill=st.just(()) | curves,
    links=st.dictionaries(st.sampled_from(["host", "network"]), _links, min_size=1),
    serving_busy_times=st.floats(1, 10),
    crowded_times=st.floats(1, 3),
    serving_share=st.floats(0, 2),
    serving_step_s=st.floats(0, 0.1),
)
