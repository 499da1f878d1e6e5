"""What command line, environment and file want of `distkv up`: the settings of everything that it starts."""

from __future__ import annotations

import contextlib
import errno
import socket
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import click
from click.core import ParameterSource

from distkv.cli.options import CONFIG_PATH
from distkv.config import (
    DEMO_MODEL,
    ENV_PREFIX,
    SECTIONS,
    TABLES,
    ConfigFile,
    InstanceConfig,
    UpConfig,
    build,
    settings_of,
)
from distkv.errors import ConfigError

CHOSEN = frozenset({"instance_id", "gmanager", "host", "data_host", "port", "data_port", "insecure", "trace_file"})
"""What `up` chooses for every instance."""
ELSEWHERE = {
    "checkpoint": (("instance", "model"), ("gateway", "model")),
    "port": (("gmanager", "port"),),
    "http_port": (("gateway", "port"),),
    "host": (("gateway", "host"),),
    "insecure": (("gateway", "insecure"),),
    "request_timeout_s": (("instance", "request_timeout_s"),),
    "http_request_timeout_s": (("gateway", "request_timeout_s"),),
    "kv_tokens": (("up", "kv_tokens"),),
}
"""The tables and settings that a parameter means, where they are not all that bear its name."""
LOOPBACK = "127.0.0.1"
CONFIG_FILE = "distkv.config_file"
"""Where a context keeps the ConfigFile that was read."""


@dataclass(frozen=True)
class Wanted:
    """given: by table of a file ("up", "gmanager", "instance", "gateway") the settings that were given. origins: by
    table and name where they came from. flags: by parameter what it is called on the command line."""

    given: Mapping[str, Mapping[str, Any]]
    origins: Mapping[tuple[str, str], str]
    flags: Mapping[str, str]

    @classmethod
    def of(cls, ctx: click.Context, params: Mapping[str, Any]) -> Wanted:
        """Flags win over the environment, that over the file of `--config`. Raises ConfigError."""
        file: ConfigFile | None = ctx.meta.get(CONFIG_FILE)
        given = {table: _of_file(file, table) if file else {} for table in TABLES}
        origins = {(table, name): f"file {ctx.meta[CONFIG_PATH]}" for table, found in given.items() for name in found}
        flags = {str(option.name): option.opts[0] for option in ctx.command.params}
        _check_model(ctx, params)
        # The argument last: it wins over a variable.
        for param, value in sorted(params.items(), key=lambda item: item[0] == "checkpoint"):
            match ctx.get_parameter_source(param):
                case ParameterSource.COMMANDLINE:
                    origin = f"command line ({flags[param]})"
                case ParameterSource.ENVIRONMENT:
                    origin = f"environment ({ENV_PREFIX}{param.upper()})"
                case _:
                    continue
            for table, name in _places(param):
                given[table][name] = value
                origins[table, name] = origin
        given["up"].setdefault("instances", params["instances"])
        wanted = cls(given, origins, flags)
        if not wanted.up.gateway:
            for param in params:
                of_gateway = {table for table, _ in _places(param)} == {"gateway"}
                if of_gateway and ctx.get_parameter_source(param) is ParameterSource.COMMANDLINE:
                    raise ConfigError(flags[param], "there is no gateway", "leave it out, or leave out --no-gateway")
        return wanted

    @property
    def up(self) -> UpConfig:
        """Settings of `distkv up` itself."""
        return build(UpConfig, self.given["up"])

    @property
    def model(self) -> str:
        return str(self.given["instance"].get("model", DEMO_MODEL))

    @property
    def drain_s(self) -> float:
        """Seconds that an instance may take to drain."""
        default = settings_of(InstanceConfig)["shutdown_timeout_s"].default
        return float(self.given["instance"].get("shutdown_timeout_s", default))

    def arguments(self) -> dict[str, Any]:
        """Of LocalCluster, and of ClusterSettings."""
        instance = {name: value for name, value in self.given["instance"].items() if name != "model"}
        gateway = {name: value for name, value in self.given["gateway"].items() if name != "port"}
        common = {"cpu_affinity": instance.pop("cpu_affinity")} if "cpu_affinity" in instance else {}
        return {
            "model": self.model,
            "instances": self.up.instances,
            "kv_tokens": self.up.kv_tokens or None,
            "port": self._place("gmanager")[1],
            "gateway": self.up.gateway,
            "http_port": self._place("gateway")[1],
            "instance_options": instance,
            "gmanager_options": self.given["gmanager"],
            "gateway_options": gateway if self.up.gateway else None,
            **common,
        }

    def check_ports(self) -> None:
        """Raise ConfigError if nobody could listen there: sooner and clearer than the process that is to."""
        places = {"port": self._place("gmanager")} | ({"http_port": self._place("gateway")} if self.up.gateway else {})
        with contextlib.ExitStack() as held:
            for param, (host, port) in places.items():
                held.enter_context(_listen(self.flags[param], host, port))

    def _place(self, section: str) -> tuple[str, int]:
        given, port = self.given[section], settings_of(SECTIONS[section])["port"].default
        return str(given.get("host", LOOPBACK)), int(given.get("port", port))


def _check_model(ctx: click.Context, params: Mapping[str, Any]) -> None:
    """The model is an argument or an option."""
    by_flag = ctx.get_parameter_source("model") is ParameterSource.COMMANDLINE
    if by_flag and params["checkpoint"] not in (None, params["model"]):
        raise click.UsageError(f"two models: {params['checkpoint']} and --model {params['model']}; give one", ctx)


def _places(param: str) -> Iterator[tuple[str, str]]:
    """The tables that have this parameter, and what it is called there."""
    if param in ELSEWHERE:
        yield from ELSEWHERE[param]
    else:
        yield from ((table, param) for table, schema in TABLES.items() if param in settings_of(schema))


def _of_file(file: ConfigFile, table: str) -> dict[str, Any]:
    """What a file has for a table, without what `up` chooses; of that a gManager's or gateway's own table may name host
    and port. The pool of [up] wins over that of [instance]."""
    found, own = file.settings(table), file.table(table)
    if table == "up":
        pool = file.settings("instance").get("kv_tokens")
        return found | ({} if pool is None else {"kv_tokens": (pool,)}) | own
    if table == "instance":
        return {name: value for name, value in found.items() if name not in CHOSEN | {"kv_tokens"}}
    return {name: value for name, value in found.items() if name not in CHOSEN or (name in own and name != "gmanager")}


def _listen(flag: str, host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    probe = socket.socket(family, socket.SOCK_STREAM)
    try:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind((host.strip("[]"), port))
        probe.listen()  # without it, two may be bound to one port
    except OSError as error:
        probe.close()
        if isinstance(error, socket.gaierror) or error.errno == errno.EADDRNOTAVAIL:
            raise ConfigError("host", f"{host} is no address of this machine: {error.strerror}") from None
        raise ConfigError(
            flag,
            f"cannot listen on {host}:{port}: {error.strerror}",
            f"give another with {flag}, 0 takes a free one",
        ) from None
    return probe
