"""What `distkv sim` was asked to simulate."""

from __future__ import annotations

import itertools
from functools import cached_property
from pathlib import Path

import click
import msgspec

from distkv.bench.harness.report import check_places
from distkv.bench.simulation.needed import Size, Wanted
from distkv.bench.workloads.trace import read_trace
from distkv.cli.simulated.lists import distinct
from distkv.cli.simulated.profiles import Known, known, single
from distkv.config import AdviceSettings
from distkv.errors import ConfigError
from distkv.sim import faults
from distkv.sim.profiles.hardware import NetworkName
from distkv.sim.spec import Fault, SimPolicyName, SimSpec
from distkv.sim.trace import TraceRequest, scaled
from distkv.types import DispatchName


class Asked(msgspec.Struct, kw_only=True, dict=True):
    """The options, by name."""

    trace: Path
    instances: tuple[tuple[int, ...], ...]
    kv_tokens: tuple[tuple[int, ...], ...]
    profile: str
    single_profile: str | None
    prefill_instances: int | None
    policies: tuple[tuple[SimPolicyName, ...], ...]
    rate_scales: tuple[tuple[float, ...], ...]
    dispatch: DispatchName
    no_swaps: bool
    scale_tokens: float
    requests: int | None
    deadline_s: float | None
    instances_per_host: int | None
    network: NetworkName | None
    goal_ttft_p99_s: float | None
    goal_tpot_p99_s: float | None
    goal_completed: float | None
    failures: tuple[tuple[str, ...], ...]
    restarts: tuple[tuple[str, ...], ...]
    stragglers: tuple[tuple[str, ...], ...]
    failures_per_hour: float
    repair_s: float
    seed: int
    json_path: Path | None
    plot_path: Path | None
    timeline_path: Path | None

    def check_paths(self) -> None:
        """Raises UsageError for a file that cannot be written, before anything is simulated."""
        check_places(self.json_path, self.plot_path, self.timeline_path)

    @cached_property
    def known(self) -> Known:
        """Of the profile."""
        return known(self.profile, self.network)

    @cached_property
    def chosen(self) -> list[SimPolicyName]:
        """The policies."""
        chosen = distinct(self.policies)
        if self.single_profile is not None and "single" not in chosen:
            raise click.UsageError("--single-profile is of --policy single")
        if self.prefill_instances is not None and "prefill-decode" not in chosen:
            raise click.UsageError("--prefill-instances is of --policy prefill-decode")
        return chosen

    @cached_property
    def scales(self) -> list[float]:
        """Of the rate."""
        return distinct(self.rate_scales)

    @property
    def wanted(self) -> Wanted | None:
        """What a cluster is to reach; None if nobody says."""
        wanted = Wanted(self.goal_ttft_p99_s, self.goal_tpot_p99_s, self.goal_completed)
        return None if wanted == Wanted() else wanted

    def requests_of_trace(self) -> list[TraceRequest]:
        """Those that are played."""
        return scaled(read_trace(self.trace, self.requests), tokens=self.scale_tokens)

    def specs(self) -> list[tuple[Size, SimSpec]]:
        """Of each size, the smallest first. Raises ConfigError."""
        rooms = distinct(self.kv_tokens) or [self.known.kv_tokens]
        if not self.kv_tokens and not self.known.kv_tokens:
            raise ConfigError("kv_tokens", "a profile from a file does not say how large a pool is", "give --kv-tokens")
        sizes = sorted(itertools.starmap(Size, itertools.product(distinct(self.instances), rooms)))
        return [(size, self._spec(size)) for size in sizes]

    def _spec(self, size: Size) -> SimSpec:
        own_room = size.kv_tokens if self.kv_tokens else None
        advice = AdviceSettings(dispatch=self.dispatch)
        return SimSpec(
            instances=size.instances,
            kv_tokens=size.kv_tokens,
            profile=self.known.profile,
            advice=msgspec.structs.replace(advice, dgfm_min_blocks=0) if self.no_swaps else advice,
            single=single(self.single_profile, self.profile, size.instances, own_room, self.known)
            if "single" in self.chosen
            else None,
            prefill_instances=self.prefill_instances,
            seed=self.seed,
            deadline_s=self.deadline_s,
            instances_per_host=self.instances_per_host or self.known.instances_per_host,
            network_shared=self.known.network_shared,
            faults=self._faults(),
            failures_per_hour=self.failures_per_hour,
            repair_s=self.repair_s,
        )

    def _faults(self) -> tuple[Fault, ...]:
        read = ((self.failures, faults.failure), (self.restarts, faults.restart), (self.stragglers, faults.slowness))
        return tuple(fault for given, made_of in read for text in distinct(given) for fault in made_of(text))
