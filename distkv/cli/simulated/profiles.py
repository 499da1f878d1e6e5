"""Profiles by name or file."""

from __future__ import annotations

from pathlib import Path

import click
import msgspec

from distkv.errors import ConfigError
from distkv.sim.baselines.single import SingleInstance, single_of
from distkv.sim.profiles.hardware import NetworkName
from distkv.wire.messages.profile import Profile

INSTANCES_PER_HOST = 8


class Known(msgspec.Struct, frozen=True):
    """A profile, and what its name says besides. kv_tokens: that an instance has memory for; 0 if that is not known.
    network: what was asked for between hosts."""

    profile: Profile
    kv_tokens: int = 0
    network: NetworkName | None = None
    instances_per_host: int = INSTANCES_PER_HOST
    network_shared: bool = False


def known(name: str, network: NetworkName | None) -> Known:
    """By a file, or by name."""
    from distkv.sim.profiles import built_in as named
    from distkv.wire.profile_file import load_profile

    path = Path(name)
    if path.is_file() or path.suffix == ".json" or path.name != name:
        if network is not None:
            raise click.UsageError("--network is of a built-in profile: a file says what its links do")
        return Known(load_profile(path))
    built_in, room = named.built_in(name, network=network), named.kv_tokens(name)
    if not room:
        raise ConfigError("profile", f"{name}: its weights leave no memory for KV", "-tp8 behind it is 8 GPUs")
    return Known(
        built_in,
        room,
        network,
        named.instances_per_host(name),
        named.network_shared(name, network=network),
    )


def single(name: str | None, profile: str, instances: int, kv_tokens: int | None, whole: Known) -> SingleInstance:
    """The one instance in place of all, by the name or file of its profile, or by theirs."""
    if name is None and not whole.kv_tokens:
        raise ConfigError(
            "single_profile",
            "a measured profile says nothing of one instance over all GPUs",
            "give --single-profile, or leave out --policy single",
        )
    if name is None:
        return single_of(profile, instances, kv_tokens=kv_tokens, network=whole.network)
    one = known(name, None)
    room = one.kv_tokens if one.kv_tokens and kv_tokens is None else instances * (kv_tokens or whole.kv_tokens)
    return SingleInstance(one.profile, room)
