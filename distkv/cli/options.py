"""Flags made from a schema, and the resolved settings with where each came from.

click resolves: command line, then environment, then the `--config` file as its default map, then default.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource
from click.shell_completion import CompletionItem
from msgspec import inspect

from distkv.cli.param_types import ParamType
from distkv.config import (
    DEFAULT_GMANAGER,
    MASKED,
    SECTIONS,
    Setting,
    Settings,
    build,
    check_environment,
    is_of_kubernetes,
    load_file,
    settings_of,
)
from distkv.log.lines import PRIVATE_FIELDS

CONFIG_PATH = "distkv.config"
"""Where a context keeps the path of the config file that was read."""

# What shells complete as a path.
_PATHS = {"model": "dir", "log_dir": "dir"} | dict.fromkeys(
    ("trace_file", "profile", "chat_template", "ssl_certfile", "ssl_keyfile"), "file"
)

_NO_LIMIT = frozenset({"max_tpot_s"})
"""Numbers that are limits, and none where they are not set."""

_ONE_OF_MANY, _WIDEST_CHOICES = "NAME", 40
"""What stands for choices that a narrow terminal has no room for beside their flag: they follow the help then."""

UNITS = {"_s": "SECONDS", "_bytes": "BYTES", "_tokens": "TOKENS", "_blocks": "BLOCKS"}
"""What numbers count, by how the names of their settings end."""


class SettingType(ParamType):
    """Converts the text of a flag or variable by its setting; a ConfigError names the key and its source."""

    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        self.name = setting.name

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not isinstance(value, str) or ctx is None:
            return value
        return self.setting.convert_text(value, origin_of(ctx, self.setting))

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        if self.setting.name in _PATHS:
            return [CompletionItem(incomplete, type=_PATHS[self.setting.name])]
        if isinstance(self.setting.kind, inspect.LiteralType):
            return [CompletionItem(value) for value in self.setting.kind.values if str(value).startswith(incomplete)]
        return []


def address_option() -> click.Option:
    """Where the cluster is."""
    return click.Option(
        ["--address"],
        default=DEFAULT_GMANAGER,
        envvar="DISTKV_ADDRESS",
        show_default=True,
        show_envvar=True,
        help="Address of a gManager or of any instance.",
    )


def setting_options(schema: type[Settings]) -> list[click.Parameter]:
    """`--config`, `--print-config` and one option per setting of a schema."""
    section = next(name for name, one in SECTIONS.items() if one is schema)

    def read(ctx: click.Context, path: Path) -> None:
        ctx.default_map = {**(ctx.default_map or {}), **load_file(path, section)}

    return [config_option(read), *map(setting_option, settings_of(schema).values()), print_config_option()]


def config_option(read: Callable[[click.Context, Path], None]) -> click.Option:
    """`--config`: a file, which `read` takes in before the other parameters are resolved."""

    def callback(ctx: click.Context, param: click.Parameter, value: Path | None) -> None:
        check_environment(os.environ)
        if value is not None:
            ctx.meta[CONFIG_PATH] = str(value)
            read(ctx, value)

    return click.Option(
        ["--config"],
        type=click.Path(path_type=Path),
        is_eager=True,
        expose_value=False,
        envvar="DISTKV_CONFIG",
        show_envvar=True,
        callback=callback,
        help="TOML file with settings; flags and environment win over it.",
    )


def print_config_option() -> click.Option:
    """`--print-config`."""
    return click.Option(
        ["--print-config"], is_flag=True, help="Print the resolved settings and their origin, then exit."
    )


class SettingOption(click.Option):
    """One whose environment variable does not count where Kubernetes made it."""

    def resolve_envvar_value(self, ctx: click.Context) -> str | None:
        made = is_of_kubernetes(str(self.envvar), os.environ)
        return None if made else super().resolve_envvar_value(ctx)


class SecretOption(click.Option):
    """One whose environment variable counts where it is empty, too: nobody serves without a key unawares because
    another variable, which should have held it, was not set."""

    def resolve_envvar_value(self, ctx: click.Context) -> str | None:
        return os.environ.get(str(self.envvar))


def setting_option(
    setting: Setting, *, flags: Sequence[str] = (), help: str = "", shown_default: str = ""
) -> click.Option:
    """The flag of one setting, which its environment variable may give too. flags: what it is called instead; help:
    what it means instead; shown_default: what help says in place of the default."""
    if isinstance(setting.kind, inspect.BoolType):
        return click.Option(
            [f"{setting.flag}/--no-{setting.flag[2:]}", setting.name],
            default=setting.default,
            envvar=setting.envvar,
            help=help or setting.help,
        )
    shown: bool | str = not setting.required
    if shown_default:
        shown = shown_default
    elif setting.default is None:
        shown = "auto" if is_automatic(setting) else False
    elif setting.default in ("", ()):
        shown = False
    elif isinstance(setting.default, tuple):
        shown = ",".join(setting.default)
    kind = SecretOption if setting.name in PRIVATE_FIELDS else SettingOption
    metavar, said = _metavar(setting), help or setting.help
    if metavar == _ONE_OF_MANY and isinstance(setting.kind, inspect.LiteralType):
        said += f" One of {', '.join(map(str, setting.kind.values))}."
    return kind(
        [*(flags or [setting.flag]), setting.name],
        type=SettingType(setting),
        default=None if setting.required else setting.default,
        envvar=setting.envvar,
        show_default=shown,
        metavar=metavar,
        help=said + ("  [required]" if setting.required else ""),
    )


def is_automatic(setting: Setting) -> bool:
    """Whether a value is chosen where none is set. Of files, directories and other texts there are none then."""
    return setting.optional and not isinstance(setting.kind, inspect.StrType) and setting.name not in _NO_LIMIT


def _metavar(setting: Setting) -> str:
    match setting.kind:
        case inspect.LiteralType(values):
            choices = "{" + "|".join(map(str, values)) + "}"
            return choices if len(choices) <= _WIDEST_CHOICES else _ONE_OF_MANY
        case inspect.VarTupleType() if setting.suffixed:
            return "N[,N...]"
        case inspect.StrType() | inspect.VarTupleType():
            return "TEXT"
        case _:
            return next((unit for end, unit in UNITS.items() if setting.name.endswith(end)), "NUMBER")


def origin_of(ctx: click.Context, setting: Setting) -> str:
    """Where the value of a parameter came from, in words."""
    match ctx.get_parameter_source(setting.name):
        case ParameterSource.COMMANDLINE:
            return f"command line ({setting.flag})"
        case ParameterSource.ENVIRONMENT:
            return f"environment ({setting.envvar})"
        case ParameterSource.DEFAULT_MAP:
            return f"file {ctx.meta.get(CONFIG_PATH, '')}".strip()
        case _:
            return "default"


def given(ctx: click.Context, schema: type[Settings], params: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that came from anywhere but the defaults."""
    return {
        name: params[name]
        for name in settings_of(schema)
        if name in params and ctx.get_parameter_source(name) is not ParameterSource.DEFAULT
    }


def resolve(ctx: click.Context, schema: type[Settings], params: Mapping[str, Any]) -> Any:
    """The config of a command line; with `--print-config` prints it and leaves with 0. Raises ConfigError, then too
    once it is printed, unless all that is wrong is that something is not set yet."""
    values = given(ctx, schema, params)
    if params.get("print_config"):
        click.echo("\n".join(config_lines(ctx, schema, params)))
        if all(name in values for name, setting in settings_of(schema).items() if setting.required):
            build(schema, values)
        ctx.exit(0)
    return build(schema, values)


def config_lines(ctx: click.Context, schema: type[Settings], params: Mapping[str, Any]) -> Iterator[str]:
    """The resolved settings as TOML, each with a comment that says where it came from."""
    for name, setting in settings_of(schema).items():
        if name not in params:
            continue
        origin = origin_of(ctx, setting)
        if params[name] is None:
            origin = "required" if setting.required else f"{origin}, automatic" if is_automatic(setting) else origin
        yield setting_line(name, params[name], origin)


def setting_line(name: str, value: object, origin: str) -> str:
    """A setting as a line of TOML, with a comment that says where it came from; secrets are masked."""
    if value is None:
        return f"{f'# {name} is not set':<44}  # {origin}"
    line = f"{name} = {_toml(MASKED if value and name in PRIVATE_FIELDS else value)}"
    return f"{line:<44}  # {origin}"


def _toml(value: object) -> str:
    match value:
        case bool():
            return str(value).lower()
        case int() | float():
            return repr(value)
        case tuple():
            return "[" + ", ".join(map(_toml, value)) + "]"
        case _:
            escaped = str(value).replace("\\", "\\\\").replace('"', '\\"')
            return '"' + "".join(c if c >= " " else f"\\u{ord(c):04x}" for c in escaped) + '"'
