"""The settings of every process of a local cluster, from what its user gives; checked before anything starts."""

from __future__ import annotations

import inspect
import itertools
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from distkv.client.local import gpus, launch
from distkv.config import check_cores_are_here, model_dir, parse_cores
from distkv.errors import ConfigError
from distkv.wire.profile_file import load_profile

DRAIN_WAIT_S = 0.0
"""Of the gateway: no load balancer is in front of it that had to see its health check fail first."""
_WIRED = frozenset({"instance_id", "port", "gmanager"})
"""Settings of instances that the cluster chooses."""
_FILES = ("chat_template", "ssl_certfile", "ssl_keyfile")
"""That a gateway reads when it starts."""
_SIZES = ("kv_tokens", "kv_cache_memory_bytes")


@dataclass(frozen=True)
class ClusterSettings:
    """By process, as `launch.command` takes them. gateway: None if there is none."""

    gmanager: dict[str, Any]
    instances: list[dict[str, Any]]
    gateway: dict[str, Any] | None

    @classmethod
    def of(
        cls,
        model: str | os.PathLike[str],
        instances: int,
        kv_tokens: int | Sequence[int] | None,
        dtype: str = "auto",
        threads: int | None = None,
        *,
        block_size: int = 16,
        port: int = 0,
        gateway: bool = True,
        http_port: int = 0,
        instance_options: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None = None,
        gmanager_options: Mapping[str, Any] | None = None,
        gateway_options: Mapping[str, Any] | None = None,
        **common: Any,
    ) -> ClusterSettings:
        """See LocalCluster. Raises ConfigError."""
        sizes = launch.pool_sizes(kv_tokens, instances)
        model_dir(os.fspath(model))
        if gateway_options and not gateway:
            raise ConfigError("gateway_options", "are given, and gateway is false")
        sections = ("gmanager", "instance", *(["gateway"] if gateway else []))
        arguments = inspect.signature(cls.of).parameters.keys() - {"common"}
        split = launch.split_common({"log_json": False} | common, sections, arguments)
        of_gmanager: dict[str, Any] = {"port": port, "expected_instances": instances}
        of_gmanager |= split["gmanager"] | dict(gmanager_options or {})
        of_gateway: dict[str, Any] | None = None
        if gateway:
            of_gateway = {"model": os.fspath(model), "port": http_port, "wait_for": instances}
            of_gateway |= {"drain_wait_s": DRAIN_WAIT_S}
            of_gateway |= split["gateway"] | dict(gateway_options or {})
            if "gmanager" in of_gateway:
                raise ConfigError("gmanager", "is not for others to set: it asks this cluster's", "leave it out")
            launch.command("gateway", of_gateway)
            if (wait_for := of_gateway["wait_for"]) > instances:
                raise ConfigError("wait_for", f"expected at most {instances}, as many as start, got {wait_for}")
        each = _each(instance_options, instances)
        for name in sorted(_WIRED & {*split["instance"]}.union(*each)):
            raise ConfigError(
                name, "is not for others to set: the cluster chooses it for every instance", "leave it out"
            )
        shared: dict[str, Any] = {"model": os.fspath(model), "dtype": dtype, "block_size": block_size}
        shared |= split["instance"]
        cores = launch.shares_of_cores(shared.pop("cpu_affinity", None), instances)
        of_instances = [
            shared
            | {"kv_tokens": size, "threads": threads, "cpu_affinity": share}
            | more
            | {"instance_id": f"i{index}", "port": 0}
            for index, (size, share, more) in enumerate(zip(sizes, cores, each, strict=True))
        ]
        devices = gpus.deal([settings.get("device", "auto") for settings in of_instances], gpus.count_gpus())
        sized = [any(settings.get(name) is not None for name in _SIZES) for settings in of_instances]
        gpus.check_sizes(devices, sized)
        for settings, device in zip(of_instances, devices, strict=True):
            if device != settings.get("device", "auto"):
                settings["device"] = device
            if settings["threads"] is None and settings["cpu_affinity"] is None:
                settings["threads"] = launch.share_of_cpus(instances)
            launch.command("instance", settings)
        launch.command("gmanager", of_gmanager)
        return cls(of_gmanager, of_instances, of_gateway)

    def check_machine(self) -> None:
        """Raises ConfigError where the processes need what is not here: cores, of which it names all, or a file."""
        given = [settings["cpu_affinity"] for settings in self.instances]
        listed = [parse_cores(one, key="cpu_affinity") for one in given if one not in (None, "auto")]
        check_cores_are_here(itertools.chain.from_iterable(listed), key="cpu_affinity")
        for profile in {one["profile"] for one in self.instances if one.get("profile") is not None}:
            load_profile(Path(profile).expanduser())
        for name in _FILES:
            file = (self.gateway or {}).get(name)
            try:
                if file is not None:
                    Path(file).open("rb").close()
            except OSError as error:
                raise ConfigError(name, f"{file} cannot be read: {error.strerror}") from None


def _each(options: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None, instances: int) -> list[dict[str, Any]]:
    if options is None or isinstance(options, Mapping):
        return [dict(options or {}) for _ in range(instances)]
    if len(options) != instances:
        raise ConfigError("instance_options", f"expected one mapping per instance ({instances}), got {len(options)}")
    return [dict(one) for one in options]
