"""Settings of the processes: frozen, strict, resolved once.

Precedence is command line > environment (`DISTKV_<NAME>`) > `--config` file > default. The annotated fields in `schema`
and `groups` are the only list of settings; `distkv.cli.options` makes the flags from them and resolves them.
"""

from distkv.config.groups import (
    AdviceSettings,
    ControlSettings,
    DataPlaneSettings,
    EngineSettings,
    LogSettings,
    MembershipSettings,
)
from distkv.config.nearest import nearest
from distkv.config.resolving import resolve_auto
from distkv.config.schema import MASKED, GatewayConfig, GManagerConfig, InstanceConfig, Settings, UpConfig
from distkv.config.sources import (
    SECTIONS,
    TABLES,
    ConfigFile,
    build,
    check_environment,
    is_of_kubernetes,
    load_file,
    read_file,
)
from distkv.config.table import ENV_PREFIX, Setting, settings_of, values_of
from distkv.config.values import (
    DEFAULT_GMANAGER,
    DEMO_MODEL,
    check_bind,
    check_cores_are_here,
    is_loopback,
    model_dir,
    parse_address,
    parse_cores,
    parse_count,
)

__all__ = [
    "DEFAULT_GMANAGER",
    "DEMO_MODEL",
    "ENV_PREFIX",
    "MASKED",
    "SECTIONS",
    "TABLES",
    "AdviceSettings",
    "ConfigFile",
    "ControlSettings",
    "DataPlaneSettings",
    "EngineSettings",
    "GManagerConfig",
    "GatewayConfig",
    "InstanceConfig",
    "LogSettings",
    "MembershipSettings",
    "Setting",
    "Settings",
    "UpConfig",
    "build",
    "check_bind",
    "check_cores_are_here",
    "check_environment",
    "is_loopback",
    "is_of_kubernetes",
    "load_file",
    "model_dir",
    "nearest",
    "parse_address",
    "parse_cores",
    "parse_count",
    "read_file",
    "resolve_auto",
    "settings_of",
    "values_of",
]
