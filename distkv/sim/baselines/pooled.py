"""An oracle: what pooling could reach if it cost nothing. The memory of all instances is one pool, and so is their
arithmetic.

It is one instance with N times the memory, whose step of β sequences takes what that of β/N takes on one, and whose
prompts go N times as fast. It decides by the same state machines, so it is no proof that nothing else could do better.
"""

from __future__ import annotations

import msgspec

from distkv.control.performance.model import PerformanceModel
from distkv.sim.baselines.single import SingleInstance
from distkv.wire.messages.profile import Curve, Point, Profile


def pooled(profile: Profile, instances: int, kv_tokens: int) -> SingleInstance:
    """The one in place of so many of this profile, with pools of `kv_tokens`, for policy `single`. What they take
    longer because others of their host compute, which do what it does, it takes longer too: as much as with full pools,
    which is the least."""
    model = PerformanceModel(profile)
    weights_s, full_s = model.base_s(1), model.attention_s(kv_tokens)
    is_crowded = instances > 1 and profile.can_crowd

    def crowded_s(point: Point, besides_s: float = 0.0) -> float:
        """Of what takes so long, in a step that computes something else too."""
        return point.seconds * (model.crowding(point.seconds + besides_s).times if is_crowded else 1.0)

    def spread(curve: Curve, besides_s: float = 0.0, rest_s: float = 0.0) -> Curve:
        return tuple(Point(instances * point.size, crowded_s(point, besides_s) + rest_s) for point in curve)

    def faster(curve: Curve) -> Curve:
        return tuple(Point(point.size, crowded_s(point) / instances) for point in curve)

    together = msgspec.structs.replace(
        profile,
        step=spread(profile.step, full_s, rest_s=profile.crowded_step_s if is_crowded else 0.0),
        attention=spread(profile.attention, weights_s),
        prefill=faster(profile.prefill),
        prefill_attention=tuple(Point(point.size, point.seconds / instances) for point in profile.prefill_attention),
        remote_step=(),
        remote_prefill=(),
        crowded_times=1.0,
        crowded_step_s=0.0,
    )
    return SingleInstance(together, instances * kv_tokens)
