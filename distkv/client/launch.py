"""Command lines and environment of the daemons that a local cluster starts."""

from __future__ import annotations

import os
import site
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import distkv
from distkv.config import SECTIONS, GManagerConfig, InstanceConfig, Settings, build, nearest, settings_of
from distkv.errors import ConfigError

MODULES = {"gmanager": "distkv.cli.gmanager", "instance": "distkv.cli.instance"}


def command(section: str, values: Mapping[str, Any]) -> list[str]:
    """How to start `distkv-<section>` with these settings, which are checked first. Raises ConfigError."""
    schema = SECTIONS[section]
    config = build(schema, values)
    program = [sys.executable, "-P", "-m", MODULES[section]]
    return [*program, *(_flag(schema, config, name) for name in values if getattr(config, name) is not None)]


def _flag(schema: type[Settings], config: Settings, name: str) -> str:
    setting, value = settings_of(schema)[name], getattr(config, name)
    if isinstance(value, bool):
        return setting.flag if value else f"--no-{setting.flag[2:]}"
    return f"{setting.flag}=" + (",".join(value) if isinstance(value, tuple) else str(value))


def environment() -> dict[str, str]:
    """Our own, without settings (a local cluster has its own), and such that children find this package."""
    env = dict(os.environ)
    for schema in SECTIONS.values():
        for setting in settings_of(schema).values():
            env.pop(setting.envvar, None)
    env.pop("DISTKV_CONFIG", None)
    root = str(Path(distkv.__file__).resolve().parent.parent)
    if root not in {str(Path(place).resolve()) for place in [*site.getsitepackages(), site.getusersitepackages()]}:
        env["PYTHONPATH"] = os.pathsep.join([root, *filter(None, [env.get("PYTHONPATH")])])
    return env


def split_common(common: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """(gManager's, instances') settings from those given for all. Raises ConfigError for one that nobody has."""
    gmanager, instance = settings_of(GManagerConfig), settings_of(InstanceConfig)
    for name in common:
        if name not in gmanager and name not in instance:
            raise ConfigError(name, "unknown setting", nearest(name, {*gmanager, *instance}))
    return (
        {name: value for name, value in common.items() if name in gmanager},
        {name: value for name, value in common.items() if name in instance},
    )


def pool_sizes(kv_tokens: int | Sequence[int] | None, instances: int) -> list[int | None]:
    """kv_tokens of each instance from one number or one per instance. Raises ConfigError."""
    if isinstance(instances, bool) or not isinstance(instances, int) or instances < 1:
        raise ConfigError("instances", f"expected an integer ≥ 1, got {instances!r}")
    if kv_tokens is None or isinstance(kv_tokens, int):
        return [kv_tokens] * instances
    if isinstance(kv_tokens, str) or not isinstance(kv_tokens, Sequence):
        raise ConfigError("kv_tokens", f"expected an integer or one per instance, got {kv_tokens!r}")
    sizes: list[int | None] = list(kv_tokens)
    if len(sizes) == 1:
        return sizes * instances
    if len(sizes) != instances:
        raise ConfigError("kv_tokens", f"expected one number or one per instance ({instances}), got {len(sizes)}")
    return sizes


def share_of_cpus(instances: int) -> int:
    """CPU threads for each of several instances on this machine."""
    return max(1, len(os.sched_getaffinity(0)) // instances)
