"""The parameters of `distkv up`: every setting of every program that it starts, and its own."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Sequence
from pathlib import Path

import click
from msgspec.structs import replace

from distkv.cli.local.wanted import CHOSEN, CONFIG_FILE
from distkv.cli.options import SettingOption, config_option, print_config_option, setting_option
from distkv.client.local.cluster_settings import DRAIN_WAIT_S
from distkv.config import DEMO_MODEL, SECTIONS, TABLES, GatewayConfig, InstanceConfig, UpConfig, read_file, settings_of


def cluster_options(
    *,
    instances: Sequence[str] = ("--instances",),
    default_instances: int = 2,
    port: str = "--port",
    http_port: str = "--http-port",
) -> list[click.Parameter]:
    """The arguments are the flags of three of them, and how many instances there are if nobody says."""
    own, of_gateway = settings_of(UpConfig), settings_of(GatewayConfig)
    # A flag that several programs have is explained as the instance's.
    every = ChainMap(*({**settings_of(SECTIONS[section])} for section in ("instance", "gmanager", "gateway")))
    others = {name: setting_option(one) for name, one in every.items() if name not in {"model", *own, *CHOSEN}}
    return [
        click.Argument(["checkpoint"], required=False, type=click.Path(file_okay=False), metavar="[MODEL]"),
        click.Option(
            ["--model"],
            type=click.Path(file_okay=False),
            default=DEMO_MODEL,
            envvar="DISTKV_MODEL",
            show_default=True,
            metavar="TEXT",
            help="As MODEL: directory of a Hugging Face checkpoint, or the name of the one that comes with distkv.",
        ),
        setting_option(replace(own["instances"], default=default_instances), flags=instances),
        *(setting_option(one) for name, one in own.items() if name != "instances"),
        _port_option(port, "port", 7070, "TCP port of the gManager; 0 takes a free one."),
        _port_option(http_port, "http_port", 8000, "TCP port of HTTP; 0 takes a free one."),
        setting_option(of_gateway["host"]),
        setting_option(of_gateway["insecure"]),
        setting_option(
            replace(of_gateway["request_timeout_s"], name="http_request_timeout_s", flag="--http-request-timeout-s"),
            help="Seconds an HTTP request may take, waiting included, before it ends with an error.",
        ),
        *(others | _set_by_up()).values(),
        config_option(_read_file),
        print_config_option(),
    ]


def _set_by_up() -> dict[str, click.Option]:
    """The flags of settings for which `up` has a default of its own, by name."""
    of_instance, of_gateway = settings_of(InstanceConfig), settings_of(GatewayConfig)
    return {
        "threads": setting_option(
            of_instance["threads"], help="CPU threads of each engine; auto shares the machine's among the instances."
        ),
        "log_json": setting_option(of_instance["log_json"], help="Write logs as JSON, one object per line."),
        "wait_for": setting_option(
            of_gateway["wait_for"],
            help="Instances that must be ready at once before the first request is served.",
            shown_default="all",
        ),
        "drain_wait_s": setting_option(replace(of_gateway["drain_wait_s"], default=DRAIN_WAIT_S)),
    }


def _port_option(flag: str, name: str, default: int, help: str) -> click.Option:
    return SettingOption(
        [flag, name],
        type=click.IntRange(0, 65535),
        default=default,
        envvar=f"DISTKV_{name.upper()}",
        show_default=True,
        help=help,
    )


def _read_file(ctx: click.Context, path: Path) -> None:
    ctx.meta[CONFIG_FILE] = file = read_file(path)
    for table in TABLES:
        file.settings(table)
