"""Command lines and environment of the daemons that a local cluster starts."""

from __future__ import annotations

import itertools
import os
import site
import sys
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import distkv
from distkv.config import SECTIONS, Setting, build, nearest, parse_cores, settings_of, values_of
from distkv.config.without_meaning import is_so_anyway
from distkv.control_groups import usable_threads
from distkv.errors import ConfigError
from distkv.log.lines import PRIVATE_FIELDS

MODULES = {
    "gmanager": "distkv.cli.daemons.gmanager",
    "instance": "distkv.cli.daemons.instance",
    "gateway": "distkv.cli.daemons.gateway",
}


def command(section: str, values: Mapping[str, Any]) -> list[str]:
    """How to start `distkv-<section>` with these settings, which are checked first. Raises ConfigError.

    Secrets are left to `environment`: whoever is on this machine can read command lines.
    """
    schema = SECTIONS[section]
    checked, settings = values_of(build(schema, values)), settings_of(schema)
    shown = (name for name in values if name not in PRIVATE_FIELDS and checked[name] not in (None, ()))
    return [sys.executable, "-P", "-m", MODULES[section], *(_flag(settings[name], checked[name]) for name in shown)]


def _flag(setting: Setting, value: Any) -> str:
    if isinstance(value, bool):
        return setting.flag if value else f"--no-{setting.flag[2:]}"
    return f"{setting.flag}={_text(value)}"


def _text(value: Any) -> str:
    return ",".join(value) if isinstance(value, tuple | list) else str(value)


def environment(section: str = "", values: Mapping[str, Any] | None = None) -> dict[str, str]:
    """Our own, with the secrets among the settings of `distkv-<section>` and no others (a local cluster has its own),
    and such that children find this package."""
    env = dict(os.environ)
    for schema in SECTIONS.values():
        for setting in settings_of(schema).values():
            env.pop(setting.envvar, None)
    env.pop("DISTKV_CONFIG", None)
    env.pop("NOTIFY_SOCKET", None)  # a service manager waits for us, not for them
    for name in PRIVATE_FIELDS & (values or {}).keys():
        setting = settings_of(SECTIONS[section])[name]
        if secrets := setting.convert((values or {})[name], "the caller"):
            env[setting.envvar] = _text(secrets)
    root = str(Path(distkv.__file__).resolve().parent.parent)
    if root not in {str(Path(place).resolve()) for place in [*site.getsitepackages(), site.getusersitepackages()]}:
        env["PYTHONPATH"] = os.pathsep.join([root, *filter(None, [env.get("PYTHONPATH")])])
    return env


def split_common(
    common: Mapping[str, Any], sections: Collection[str], arguments: Collection[str] = ()
) -> dict[str, dict[str, Any]]:
    """For each of `sections`, the settings it has of those given for all. Raises ConfigError for one that none has,
    which may have been meant for one of the caller's other `arguments`, or be one of vLLM's."""
    known = {section: settings_of(SECTIONS[section]) for section in sections}
    names = {name for settings in known.values() for name in settings}
    for name, value in common.items():
        if name not in names and not is_so_anyway(name, value):
            raise ConfigError(
                name, "unknown setting", nearest(name, {*names, *arguments}, "docs/configuration.md has all of them")
            )
    return {
        section: {name: value for name, value in common.items() if name in settings}
        for section, settings in known.items()
    }


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


def shares_of_cores(affinity: object, instances: int) -> list[str | None]:
    """cpu_affinity of each of several instances: a part of the cores each, as far as there are enough.

    Raises ConfigError.
    """
    if affinity is None or affinity == "auto":
        return [None] * instances
    if not isinstance(affinity, str):
        raise ConfigError("cpu_affinity", f"expected a text such as 0-3,6, got {affinity!r}")
    cores = parse_cores(affinity, key="cpu_affinity")
    bounds = [len(cores) * index // instances for index in range(instances + 1)]
    parts = [
        cores[start:end] or (cores[index % len(cores)],)
        for index, (start, end) in enumerate(itertools.pairwise(bounds))
    ]
    return [",".join(map(str, part)) for part in parts]


def share_of_cpus(instances: int) -> int:
    """CPU threads for each of several instances here."""
    return max(1, usable_threads() // instances)
