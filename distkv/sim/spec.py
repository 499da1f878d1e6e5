"""What is simulated: instances, what they compute with, what lies between them, and what happens to them."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from distkv.config import AdviceSettings
from distkv.errors import ConfigError
from distkv.sim.baselines.single import SingleInstance
from distkv.types import PolicyName
from distkv.wire.messages.profile import LinkProfile, Profile

SimPolicyName = Literal[PolicyName, "single", "migrate", "prefill-decode"]
"""Policies of a gManager, and what they are compared with."""
GMANAGER = "gmanager"
MOST_FAILURES_PER_HOUR = 100_000


class Kill(msgspec.Struct, frozen=True):
    """The processes of an instance die, or that of GMANAGER."""

    at_s: float
    instance: str


class Restart(msgspec.Struct, frozen=True):
    """An instance that is dead is started again, with an empty pool; GMANAGER knowing nothing."""

    at_s: float
    instance: str


class Slow(msgspec.Struct, frozen=True):
    """An instance takes `factor` times as long for everything it computes."""

    at_s: float
    until_s: float
    instance: str
    factor: float


Fault = Kill | Restart | Slow


class SimSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A cluster of instances i0, i1, ... Times are seconds from the trace's beginning.

    kv_tokens: of each pool. profile: of each instance. policy, advice: as a gManager has them; `policy` replaces the
    one in `advice`. single: the one instance in place of all, which policy `single` needs. prefill_instances: how many
    compute prompts, of policy `prefill-decode`; None is the best of a few. settings: of the rManagers,
    by name, where they are not the defaults. one_pool: the memory of all instances is one pool, see
    `distkv.sim.timed.one_pool`; for policies that share nothing besides.
    instances_per_host: so many are on one host. host_link, network_link: what
    lies between instances of one host, and between hosts; None is what the profile says. network_shared: instances of
    a host share its link to others, as Ethernet; otherwise each has its own. message_s: how long a message of the
    control plane is on its way. pipe_s: the same between an rManager and its worker. deadline_s: after which clients
    give a request up; None is never. most_s: how long is simulated at most. sample_s: between two looks at the memory
    of all. faults: at given times. failures_per_hour: besides, so many of the instances together die at random, each to
    be started again after repair_s. checks: whether every invariant is checked after every event. keep_events: whether
    the result has what was published. fast_forward: whether results of quiet decode are handed over together; what
    comes of it is the same.
    """

    instances: int
    kv_tokens: int
    profile: Profile
    policy: SimPolicyName = "contract"
    advice: AdviceSettings = AdviceSettings()
    single: SingleInstance | None = None
    prefill_instances: int | None = None
    settings: dict[str, Any] = {}
    one_pool: bool = False
    seed: int = 0
    instances_per_host: int = 8
    host_link: LinkProfile | None = None
    network_link: LinkProfile | None = None
    network_shared: bool = False
    message_s: float = 0.0002
    pipe_s: float = 0.0001
    deadline_s: float | None = None
    most_s: float | None = None
    sample_s: float = 1.0
    faults: tuple[Fault, ...] = ()
    failures_per_hour: float = 0.0
    repair_s: float = 60.0
    checks: bool = False
    keep_events: bool = False
    fast_forward: bool = True

    def __post_init__(self) -> None:
        """Raises ConfigError naming what is wrong."""
        for name in ("instances", "kv_tokens", "instances_per_host"):
            if getattr(self, name) < 1:
                raise ConfigError(name, f"expected at least 1, got {getattr(self, name)}")
        if self.kv_tokens < self.profile.block_tokens:
            raise ConfigError(
                "kv_tokens", f"{self.kv_tokens} tokens are less than one rBlock of {self.profile.block_tokens}"
            )
        if self.policy == "single" and self.single is None:
            raise ConfigError("single", "a profile of N instances does not say what one over all their GPUs does")
        if not 0 <= self.failures_per_hour <= MOST_FAILURES_PER_HOUR:
            raise ConfigError(
                "failures_per_hour", f"expected 0 to {MOST_FAILURES_PER_HOUR:,}, got {self.failures_per_hour:g}"
            )
        if not self.repair_s > 0:
            raise ConfigError("repair_s", f"expected more than 0, got {self.repair_s:g}")
        if self.policy == "prefill-decode" and self.instances == 1:
            raise ConfigError("instances", "prefill-decode divides them: it needs at least 2")
        if self.prefill_instances is not None and not 1 <= self.prefill_instances < self.instances:
            most, got = self.instances - 1, self.prefill_instances
            raise ConfigError("prefill_instances", f"expected 1 to {most}, for the others decode, got {got}")
        known = set(self.names)
        for fault in self.faults:
            if fault.instance == GMANAGER and isinstance(fault, Slow):
                raise ConfigError("faults", f"only instances can be slowed, {self.names[0]} to {self.names[-1]}")
            if fault.instance not in known | {GMANAGER}:
                raise ConfigError("faults", f"there is no instance {fault.instance!r}: they are i0 to {self.names[-1]}")

    @property
    def names(self) -> tuple[str, ...]:
        """Of the instances."""
        return tuple(f"i{index}" for index in range(self.instances))

    @property
    def num_blocks(self) -> int:
        """rBlocks of each pool, of the one if there is one."""
        blocks = self.kv_tokens // self.profile.block_tokens
        return self.instances * blocks if self.one_pool else blocks
