"""vLLM-single: one tensor- and pipeline-parallel instance over the GPUs of all (000 Fig. 8; 001 §2.2, §7.1).

It is an instance like the others, with another profile and a larger pool, which shares with nobody: the same state
machines serve. Its weights lie once where those of N instances lie N times, so it has memory for more keys and values
than they have together.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
from msgspec.structs import replace

from distkv.config import ControlSettings
from distkv.sim.profiles import built_in as named
from distkv.sim.profiles.hardware import NetworkName
from distkv.wire.messages.profile import Profile

if TYPE_CHECKING:
    from distkv.sim.spec import SimSpec

TOGETHER = ("max_num_seqs", "max_waiting")
"""Settings of which it has as much as N instances together."""


class SingleInstance(msgspec.Struct, frozen=True):
    """What the one instance computes with, and the KV tokens that it has memory for."""

    profile: Profile
    kv_tokens: int


def single_of(
    name: str, instances: int, *, kv_tokens: int | None = None, network: NetworkName | None = None
) -> SingleInstance:
    """One over the GPUs of so many instances of a built-in profile, tensor-parallel in a host and pipelined over hosts.

    kv_tokens: the pool of each of those, if it is not what their memory leaves; then the one has as much as they have
    together. Raises ConfigError for GPUs that do not divide so.
    """
    whole = named.over_all(name, instances * named.instance(name).gpus)
    room = named.kv_tokens(whole) if kv_tokens is None else instances * kv_tokens
    return SingleInstance(named.built_in(whole, network=network), room)


def as_single(spec: SimSpec) -> SimSpec:
    """A cluster of one instance in place of all of `spec`, whose policy is `single`. What fails or is slow of any of
    them is so of the whole."""
    assert spec.single is not None
    usual = ControlSettings()
    settings: dict[str, Any] = dict(spec.settings)
    for setting in TOGETHER:
        settings[setting] = spec.instances * settings.get(setting, getattr(usual, setting))
    return replace(
        spec,
        instances=1,
        kv_tokens=spec.single.kv_tokens,
        profile=spec.single.profile,
        policy="none",
        prefill_instances=None,
        settings=settings,
        faults=tuple(replace(one, instance="i0") if one.instance in spec.names else one for one in spec.faults),
    )
