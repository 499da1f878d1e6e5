"""Who can serve a trace: clusters of distkv that share their memory or do not, one big instance, instances of vLLM."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, ExitStack
from pathlib import Path
from typing import Any, Literal, Protocol, get_args

import msgspec
from msgspec import inspect

from distkv.bench.baselines.checkpoints import Model
from distkv.bench.baselines.process import BaselineFailed
from distkv.bench.baselines.setup import python_of
from distkv.bench.baselines.vllm_servers import VllmServers
from distkv.bench.harness.command import Say
from distkv.bench.workloads.replay import Generate, through_client
from distkv.client.async_client import AsyncClient
from distkv.client.local.cluster import LocalCluster
from distkv.config import GManagerConfig, settings_of
from distkv.types import PolicyName
from distkv.wire.messages.counters import COUNTERS, total

Name = Literal["off", "contract", "greedy", "even", "big", "vllm"]
NAMES: tuple[Name, ...] = get_args(Name)
ANSWER_S = 30.0
OFF, BIG, VLLM = "off", "big", "vllm"
POLICIES: Mapping[str, PolicyName] = {OFF: "none", "contract": "contract", "greedy": "greedy", "even": "even"}
POOLED = tuple(name for name in POLICIES if name != OFF)


class Contender(Protocol):
    """Serves requests. settings: how it was started, for the report."""

    settings: dict[str, Any]

    def serving(self) -> AbstractAsyncContextManager[Generate]:
        """How requests are sent to it."""

    def counters(self) -> Mapping[str, float]:
        """What it has counted since it started."""

    def close(self) -> None:
        """End it."""


class Given(msgspec.Struct, frozen=True):
    """What all of them have. kv_tokens: of each instance. longest: most tokens of a request. profile: of one instance
    of one thread."""

    shape: Model
    model: Path
    instances: int
    kv_tokens: int
    longest: int
    cores: tuple[int, ...]
    profile: Path | None
    venvs: Path


class Daemons:
    """A cluster of distkv without a gateway."""

    def __init__(
        self,
        given: Given,
        instances: int,
        kv_tokens: int,
        threads: int,
        *,
        policy: str | None = None,
        profile: Path | None = None,
    ) -> None:
        gmanager = {} if policy is None else {"policy": policy}
        instance = {} if profile is None else {"profile": str(profile)}
        cores = ",".join(map(str, given.cores))
        self.settings: dict[str, Any] = {"instances": instances, "kv_tokens": kv_tokens, "threads": threads}
        self.settings |= {"cpu_affinity": cores} | gmanager | instance
        self._cluster = LocalCluster(
            given.model,
            instances,
            kv_tokens,
            threads=threads,
            gateway=False,
            log_level="warning",
            cpu_affinity=cores,
            gmanager_options=gmanager,
            instance_options=instance,
        )

    def serving(self) -> AbstractAsyncContextManager[Generate]:
        """Through the Python client."""
        return through_client(self._cluster.address)

    def counters(self) -> Mapping[str, float]:
        """Of all instances together; nothing if one of them does not answer for ANSWER_S."""

        async def statuses() -> Mapping[str, float]:
            until_s = time.monotonic() + ANSWER_S
            async with AsyncClient(self._cluster.address) as client:
                await client.members()
                while time.monotonic() < until_s:
                    found = [status.instance for status in await client.statuses()]
                    if all(one.state in ("ready", "draining") for one in found):
                        counts = total(*(one.counters for one in found))
                        return {one.name: getattr(counts, one.name) for one in COUNTERS}
                    await asyncio.sleep(0.2)
            return {}

        return asyncio.run(statuses())

    def close(self) -> None:
        """End the daemons."""
        self._cluster.close()


def known_policies() -> tuple[str, ...]:
    """Those that a gManager can be set to."""
    kind = settings_of(GManagerConfig)["policy"].kind
    assert isinstance(kind, inspect.LiteralType)
    return tuple(map(str, kind.values))


def default_policy() -> str:
    """The one that a gManager has if nothing is set."""
    return str(settings_of(GManagerConfig)["policy"].default)


def start(
    names: Sequence[str], given: Given, stack: ExitStack, say: Say
) -> tuple[dict[str, Contender], dict[str, str]]:
    """The contenders that can run, in the order of NAMES, closed with `stack`; and why the others cannot."""
    contenders: dict[str, Contender] = {}
    left_out: dict[str, str] = {}
    for name in NAMES:
        if name not in names:
            left_out[name] = "it was not asked for"
        elif reason := _absent(name, given):
            left_out[name] = reason
        else:
            say(f"starting {name}")
            try:
                contenders[name] = _make(name, given)()
            except BaselineFailed as error:
                left_out[name] = str(error)
            else:
                stack.callback(contenders[name].close)
    return contenders, left_out


def _absent(name: str, given: Given) -> str:
    """Why it cannot run; empty if it can."""
    if name in POLICIES and (policy := POLICIES[name]) not in known_policies():
        return f"gManagers know no policy {policy}"
    if name == VLLM and python_of(VLLM, given.venvs) is None:
        return f"it is not installed: python -m distkv.bench.baselines.setup {VLLM} {given.venvs}"
    return ""


def _make(name: Name, given: Given) -> Callable[[], Contender]:
    match name:
        case "big":
            threads = min(given.instances, len(given.cores))
            return lambda: Daemons(given, 1, given.instances * given.kv_tokens, threads)
        case "vllm":
            return lambda: _vllm(given)
        case "off" | "contract" | "greedy" | "even":
            policy = POLICIES[name]
            return lambda: Daemons(given, given.instances, given.kv_tokens, 1, policy=policy, profile=given.profile)


def _vllm(given: Given) -> VllmServers:
    python = python_of(VLLM, given.venvs)
    assert python is not None
    return VllmServers(
        python,
        given.model,
        cores=[given.cores[index % len(given.cores)] for index in range(given.instances)],
        kv_tokens=given.kv_tokens,
        token_bytes=given.shape.kv_bytes_per_token,
        longest=given.longest,
        environment=os.environ,
    )
