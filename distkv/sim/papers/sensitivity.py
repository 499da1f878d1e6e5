"""How much a ratio depends on what nobody knows exactly: the hardware with one part 20 % slower or faster at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product

from msgspec.structs import replace

from distkv.sim.papers.figure import rounded
from distkv.sim.profiles.hardware import Gpu
from distkv.sim.profiles.sensitivity import PARTS, scaled
from distkv.sim.spec import SimSpec
from distkv.wire.messages.profile import Profile

FACTORS = (0.8, 1.2)


def gpus_around(gpu: Gpu) -> Iterator[Gpu]:
    """What reads memory, launches kernels, adds up hidden states, or carries bytes, slower or faster."""
    for factor in FACTORS:
        yield replace(gpu, hbm_bytes_per_s=gpu.hbm_bytes_per_s / factor)
        yield replace(gpu, layer_s=gpu.layer_s * factor)
        yield replace(gpu, all_reduce_s={gpus: factor * one_s for gpus, one_s in gpu.all_reduce_s.items()})
        link = gpu.nvlink
        yield replace(
            gpu,
            nvlink=replace(
                link,
                round_trip_s=link.round_trip_s * factor,
                bytes_per_s=link.bytes_per_s / factor,
                read_bytes_per_s=link.read_bytes_per_s / factor,
            ),
        )


def profiles_around(profile: Profile) -> Iterator[Profile]:
    """Each part of a profile, slower or faster."""
    for factor, part in product(FACTORS, PARTS):
        yield scaled(profile, factor, (part,))


def specs_around(spec: SimSpec) -> Iterator[SimSpec]:
    """Each part of what its instances compute by, and of what the one in place of all does, slower or faster."""
    assert spec.single is not None
    for profile, of_single in zip(profiles_around(spec.profile), profiles_around(spec.single.profile), strict=True):
        yield replace(spec, profile=profile, single=replace(spec.single, profile=of_single))


def gpu_range(ratio: Callable[[Gpu], float], gpu: Gpu) -> tuple[float, float]:
    """The least and the most that a ratio becomes."""
    found = [ratio(one) for one in (gpu, *gpus_around(gpu))]
    return rounded(min(found)), rounded(max(found))


def profile_range(ratio: Callable[[Profile], float], profile: Profile) -> tuple[float, float]:
    """The least and the most that a ratio becomes."""
    found = [ratio(one) for one in (profile, *profiles_around(profile))]
    return rounded(min(found)), rounded(max(found))
