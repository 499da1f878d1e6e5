"""The same profile with some of its times longer or shorter: how much a result depends on what nobody knows exactly."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal, get_args

from msgspec.structs import replace

from distkv.wire.messages.profile import LinkProfile, Point, Profile

Part = Literal["step", "attention", "prefill", "links"]
PARTS: tuple[Part, ...] = get_args(Part)
CURVES_OF: Mapping[Part, tuple[str, ...]] = {
    "step": ("step", "remote_step"),
    "attention": ("attention", "prefill_attention", "serving", "serving_prefill"),
    "prefill": ("prefill", "remote_prefill"),
    "links": (),
}


def scaled(profile: Profile, factor: float, parts: Iterable[Part] = PARTS) -> Profile:
    """Times of these parts times `factor`, rates of links divided by it; by default all, as of slower hardware.

    factor: more than 0; ValueError otherwise.
    """
    if not factor > 0:
        raise ValueError(f"expected a factor of more than 0, got {factor}")
    changes: dict[str, Any] = {}
    for part in parts:
        for name in CURVES_OF[part]:
            changes[name] = tuple(Point(point.size, point.seconds * factor) for point in getattr(profile, name))
        if part == "links":
            changes["links"] = {kind: _slower(link, factor) for kind, link in profile.links.items()}
    return replace(profile, **changes)


def _slower(link: LinkProfile, factor: float) -> LinkProfile:
    return replace(
        link,
        round_trip_s=link.round_trip_s * factor,
        busy_round_trip_s=link.busy_round_trip_s * factor,
        bytes_per_s=link.bytes_per_s / factor,
        read_bytes_per_s=link.read_bytes_per_s / factor,
    )
