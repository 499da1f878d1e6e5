"""An oracle: what pooling could reach if it cost nothing. The memory of all instances is one pool, and so is their
arithmetic.

It is one instance with N times the memory, whose step of β sequences takes what that of β/N takes on one, and whose
prompts go N times as fast. It decides by the same state machines, so it is no proof that nothing else could do better.
"""

from __future__ import annotations

import msgspec

from distkv.sim.baselines.single import SingleInstance
from distkv.wire.messages.profile import Curve, Point, Profile


def pooled(profile: Profile, instances: int, kv_tokens: int) -> SingleInstance:
    """The one in place of so many of this profile, with pools of `kv_tokens`, for policy `single`. What they take
    longer because others of their host compute, it takes longer too."""
    times, rest_s = profile.crowding(is_crowded=instances > 1)

    def spread(curve: Curve, rest_s: float = 0.0) -> Curve:
        return tuple(Point(instances * point.size, times * point.seconds + rest_s) for point in curve)

    def faster(curve: Curve) -> Curve:
        return tuple(Point(point.size, times * point.seconds / instances) for point in curve)

    together = msgspec.structs.replace(
        profile,
        step=spread(profile.step, rest_s),
        attention=spread(profile.attention),
        prefill=faster(profile.prefill),
        prefill_attention=faster(profile.prefill_attention),
        remote_step=(),
        remote_prefill=(),
        crowded_times=1.0,
        crowded_step_s=0.0,
    )
    return SingleInstance(together, instances * kv_tokens)
