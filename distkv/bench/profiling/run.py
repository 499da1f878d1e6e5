"""A whole run: two workers are started, measured and compared with what was predicted."""

from __future__ import annotations

import asyncio
import statistics
from pathlib import Path
from typing import Any

import msgspec
import torch

from distkv.bench.harness.command import Say
from distkv.bench.harness.machine import machine_facts, versions_of
from distkv.bench.profiling.compare import compare, errors, grid, share_within
from distkv.bench.profiling.engine import Engine, engines
from distkv.bench.profiling.measure import Measuring, Shape
from distkv.bench.profiling.plan import FULL, QUICK, Budget, Sizes
from distkv.client.local.launch import share_of_cpus, shares_of_cores
from distkv.config import InstanceConfig, build, resolve_auto
from distkv.engine.device.registry import choose_device
from distkv.engine.model.config import ModelConfig
from distkv.errors import ConfigError
from distkv.wire.messages.profile import LinkProfile
from distkv.wire.profile_file import ProfileFile

DEBTOR, CREDITOR = "debtor", "creditor"
BUDGET_S = 240.0


def run(settings: dict[str, Any], say: Say, *, quick: bool = False, budget_s: float = BUDGET_S) -> ProfileFile:
    """Measure the running hardware, both workers with these settings of an instance; they share its cores out, as two
    of one cluster do. Raises ConfigError, StartupFailed."""
    return asyncio.run(_run(settings, say, quick=quick, budget_s=budget_s))


async def _run(settings: dict[str, Any], say: Say, *, quick: bool, budget_s: float) -> ProfileFile:
    sizes = QUICK if quick else FULL
    configs = configs_of(settings, sizes)
    engine, facts = configs[0].engine, machine_facts()
    device = choose_device(engine.device, engine.cpu_kernels, engine.attention_backend)
    say("loading the model twice")
    async with engines(configs) as (debtor, creditor):
        shape = shape_of(configs[0].engine.model, debtor)
        sizes = within(sizes, shape.most_tokens, debtor.ready.block_tokens)
        measuring = Measuring(debtor, creditor, shape, sizes, Budget(budget_s), say)
        profile = await measuring.profile(grid(sizes, debtor.ready.block_tokens))
        points = compare(profile, sizes, measuring.turns)
    profile = msgspec.structs.replace(
        profile,
        device=facts["cpu"] if device.place.type == "cpu" else torch.cuda.get_device_name(device.place),
        kernels=device.backend.name,
        threads=engine.threads or 0,
        versions=versions_of(("torch",)),
        date=facts["date"],
        within=share_within(points),
    )
    return ProfileFile(profile=profile, points=points)


def configs_of(settings: dict[str, Any], sizes: Sizes) -> tuple[InstanceConfig, ...]:
    """Of the debtor and of the creditor. Chunks ship their queries: what fetching takes follows from what reading and
    attention take. Raises ConfigError."""
    block = build(InstanceConfig, settings).engine.block_size
    cores = shares_of_cores(settings.get("cpu_affinity"), 2)
    threads = {} if cores[0] else {"threads": share_of_cpus(2)}
    fixed = {"log_level": "error", "prefill_kv": "ship", "kv_tokens": pool_tokens(sizes, block)}
    return tuple(
        resolve_auto(build(InstanceConfig, threads | settings | fixed | {"instance_id": name, "cpu_affinity": share}))
        for name, share in zip((DEBTOR, CREDITOR), cores, strict=True)
    )


def pool_tokens(sizes: Sizes, block: int) -> int:
    """Tokens of a pool that holds whatever is measured."""
    most_batch = max(sizes.batches + sizes.remote_batches)
    lent = max(sizes.first_tokens + sizes.remote_tokens)
    return max(
        most_batch * 3 * block,
        max(sizes.context_tokens) + max(sizes.grid_batches) * 2 * block + max(sizes.chunks),
        max(sizes.first_tokens) + max(sizes.grid_batches) * (sizes.others_tokens + 2 * block),
        lent + max(sizes.chunks) + 4 * block,
        lent + sizes.creditor_batch * (sizes.others_tokens + 2 * block),
        64 * block,
    )


def shape_of(model: str, engine: Engine) -> Shape:
    """By the files of the model and what its worker says."""
    config = ModelConfig.from_dir(model)
    facts = dict(fact.rsplit(" ", 1) for fact in engine.ready.serves.split(", "))
    heads = config.heads
    return Shape(
        model=Path(model).name,
        layers=config.num_layers,
        query_bytes=heads.queries * heads.dim * getattr(torch, facts["dtype"]).itemsize,
        partial_bytes=heads.queries * (heads.dim + 1) * 4,
        kv_bytes=engine.ready.data.slot_bytes // (config.num_layers * engine.ready.block_tokens),
        most_tokens=engine.ready.max_positions,
    )


def within(sizes: Sizes, most_tokens: int, block: int) -> Sizes:
    """The sizes that a model of this many positions takes, with a chunk behind each context, in whole rBlocks of so
    many tokens: contexts of several for each sequence, spans and the context of a request of more than one. Raises
    ConfigError when there are none."""
    most = most_tokens - max(sizes.chunks) - 64
    least = {
        "context_tokens": 2 * block * max(sizes.grid_batches),
        "remote_tokens": 2 * block,
        "first_tokens": 2 * block,
    }
    found = {
        name: tuple(sorted({tokens // block * block for tokens in getattr(sizes, name) if fewest <= tokens <= most}))
        or (most // 2 // block * block,)
        for name, fewest in least.items()
    }
    if any(found[name][0] < fewest for name, fewest in least.items()):
        needed = 2 * max(least.values()) + max(sizes.chunks) + 64
        raise ConfigError(
            "block_size", f"expected a model of {needed:,} positions for rBlocks of {block}, it has {most_tokens:,}"
        )
    return msgspec.structs.replace(sizes, **found)


def with_network(file: ProfileFile, round_trip_us: float, gbit_s: float) -> ProfileFile:
    """The same with what a network between machines does: its round trip is longer than TCP's on one machine by that
    much, and a bandwidth bounds what TCP does there."""
    here = file.profile.links.get("network") or file.profile.links["host"]
    trip_s = here.round_trip_s + round_trip_us * 1e-6
    most = gbit_s * 1e9 / 8
    network = LinkProfile(
        round_trip_s=trip_s,
        bytes_per_s=min(most, here.bytes_per_s),
        read_bytes_per_s=min(most, here.read_bytes_per_s),
        busy_round_trip_s=here.busy_round_trip_s + trip_s - here.round_trip_s,
    )
    links = file.profile.links | {"network": network}
    return msgspec.structs.replace(file, profile=msgspec.structs.replace(file.profile, links=links))


def summary(file: ProfileFile) -> str:
    """How good the predictions were, in a sentence."""
    found = list(errors(file.points))
    if not found:
        return "no time was left to compare predictions with measurements"
    share = share_within(file.points) or 0.0
    return (
        f"{share:.0%} of {len(found)} predictions are within 10 % of what was measured; "
        f"the median is off by {statistics.median(found):.1%}, the worst by {max(found):.1%}"
    )
