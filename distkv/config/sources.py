"""Where settings come from besides flags: TOML files, the environment, plain values.

One file can serve all processes, dashes or underscores alike: a setting outside tables is for every process that has
it, one in a `[gmanager]`, `[instance]` or `[gateway]` table for that process only, one in `[up]` for `distkv up`.
"""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from distkv.config.nearest import nearest
from distkv.config.schema import GatewayConfig, GManagerConfig, InstanceConfig, Settings, UpConfig
from distkv.config.table import ENV_PREFIX, groups_of, settings_of
from distkv.errors import ConfigError

SECTIONS: Mapping[str, type[Settings]] = {
    "gmanager": GManagerConfig,
    "instance": InstanceConfig,
    "gateway": GatewayConfig,
}
"""What each daemon has."""
TABLES: Mapping[str, type[msgspec.Struct]] = {**SECTIONS, "up": UpConfig}
"""What stands in the tables of a file."""
_NO_SETTINGS = ("CONFIG", "ADDRESS", "HTTP_PORT", "HTTP_REQUEST_TIMEOUT_S", "MODELS", "RUN_DIR")
"""What variables are besides: of commands, of `distkv up`, of compose.yaml and of the files in configs/."""
S = TypeVar("S", bound=msgspec.Struct)


@dataclass(frozen=True)
class ConfigFile:
    """A TOML file as it was read, once, as it may be a pipe. plain: what stands outside tables, unchecked. tables: the
    checked settings of each of TABLES that it has."""

    path: Path
    plain: Mapping[str, Any]
    tables: Mapping[str, Mapping[str, Any]]

    def settings(self, section: str) -> dict[str, Any]:
        """The checked settings for `section`, one of TABLES. Raises ConfigError."""
        found: dict[str, Any] = {}
        seen: set[str] = set()
        for key, value in self.plain.items():
            owners = _owners(key)
            if not owners:
                known = {*TABLES, *(name for schema in TABLES.values() for name in settings_of(schema))}
                raise ConfigError(key, f"unknown setting in {self.path}", nearest(key.replace("-", "_"), known))
            # What is for others has to be right too.
            checked = _check_table({key: value}, section if section in owners else owners[0], str(self.path))
            if seen & checked.keys():
                raise _twice(key, str(self.path))
            seen |= checked.keys()
            found |= checked if section in owners else {}
        return found | self.table(section)

    def table(self, section: str) -> dict[str, Any]:
        """As `settings`, without those outside tables."""
        return dict(self.tables.get(section, {}))


def load_file(path: Path, section: str) -> dict[str, Any]:
    """The checked settings that a TOML file has for `section`, one of TABLES. Raises ConfigError."""
    return read_file(path).settings(section)


def read_file(path: Path) -> ConfigFile:
    """Raises ConfigError for what is no TOML, and for mistakes in tables."""
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise ConfigError("config", f"cannot read {path}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError("config", f"{path} is not TOML: {error}") from None
    tables = {key: value for key, value in content.items() if key in TABLES and isinstance(value, dict)}
    checked = {name: _check_table(table, name, f"{path} [{name}]") for name, table in tables.items()}
    return ConfigFile(path, {key: value for key, value in content.items() if key not in tables}, checked)


def _check_table(table: Mapping[str, object], section: str, source: str) -> dict[str, Any]:
    settings, values = settings_of(TABLES[section]), {}
    for key, value in table.items():
        name = _name(key, section)
        if name not in settings:
            raise ConfigError(key, f"unknown setting in {source}", _hint(name, section))
        if name in values:
            raise _twice(key, source)
        values[name] = settings[name].convert(value, source)
    return values


def _twice(key: str, source: str) -> ConfigError:
    return ConfigError(key, f"is set in another spelling too in {source}", "leave one of them out")


def _name(key: str, section: str) -> str:
    """A key as the setting that it may mean: that of its flag is good too."""
    name = key.replace("-", "_")
    flags = {one.flag[2:].replace("-", "_"): one.name for one in settings_of(TABLES[section]).values()}
    return flags.get(name, name)


def _owners(key: str) -> list[str]:
    """The sections that have this setting."""
    return [section for section, schema in TABLES.items() if _name(key, section) in settings_of(schema)]


def _hint(name: str, section: str) -> str:
    if owners := _owners(name):
        program = f"distkv-{owners[0]}" if owners[0] in SECTIONS else f"distkv {owners[0]}"
        return f"it belongs to {program}: put it under [{owners[0]}]"
    return nearest(name, {*settings_of(TABLES[section]), *TABLES})


def check_environment(environ: Mapping[str, str]) -> None:
    """Refuse DISTKV_ variables that are a near miss of a setting. Others are left alone: service managers make some."""
    known = {one.envvar for schema in TABLES.values() for one in settings_of(schema).values()}
    known |= {ENV_PREFIX + name for name in _NO_SETTINGS}
    for name in environ:
        if name.startswith(ENV_PREFIX) and name not in known:
            close = difflib.get_close_matches(name, known, n=1, cutoff=0.9)
            if close:
                raise ConfigError(name, "unknown setting in the environment", f"did you mean {close[0]}?")


def is_of_kubernetes(name: str, environ: Mapping[str, str]) -> bool:
    """Whether a variable such as DISTKV_PORT is no setting: beside a service named distkv every container has one, with
    the address of that service."""
    service = name.removesuffix("_PORT")
    return service != name and f"{service}_SERVICE_HOST" in environ and "://" in environ.get(name, "")


def build(schema: type[S], values: Mapping[str, Any]) -> S:
    """A config from checked values. Raises ConfigError when one is missing, unknown, or two contradict each other."""
    settings = settings_of(schema)
    for name in values:
        if name not in settings:
            raise ConfigError(name, "unknown setting", nearest(name, settings))
    for setting in settings.values():
        if setting.required and setting.name not in values:
            raise ConfigError(setting.name, "is not set", f"give {setting.flag}, {setting.envvar} or a config file")
    checked = {name: settings[name].convert(value, "the caller") for name, value in values.items()}
    fields: dict[str, Any] = {name: value for name, value in checked.items() if not settings[name].group}
    for group, kind in groups_of(schema).items():
        fields[group] = kind(**{name: value for name, value in checked.items() if settings[name].group == group})
    return schema(**fields)
