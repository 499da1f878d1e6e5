"""`distkv up`: a cluster on this machine, until Ctrl-C."""

from __future__ import annotations

import contextlib
import sys
import time
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource
from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from distkv.cli.options import CONFIG_PATH, given, setting_options
from distkv.cli.terminal import signals_interrupt, status_tables
from distkv.client.blocking import Client
from distkv.client.child import how_it_ended
from distkv.client.local_cluster import LocalCluster
from distkv.config import InstanceConfig, check_model_dir, load_table, parse_count
from distkv.errors import ClusterUnreachable, ConfigError

PERIOD_S = 0.5
PER_PROCESS = ("instance_id", "gmanager", "host", "data_host", "port", "data_port", "insecure", "trace_file")
REPLACED = ("kv_tokens", "print_config")
HELP = """Start a gManager and several instances of a model on this machine, and show what they do until Ctrl-C.
An instance that dies is reported and takes nothing else down. Settings are those of distkv-instance, for each of them.

\b
Examples:
  distkv up --model ./Llama-3.2-1B --instances 3
  distkv up --model ./tiny --instances 3 --kv-tokens 1024 --dtype float32 --threads 1
  distkv up --model ./tiny --instances 3 --kv-tokens 256,512,1K --port 7171
"""


def _pools(ctx: click.Context, param: click.Parameter, value: str | int | None) -> list[int] | None:
    if value is None or isinstance(value, int):
        return None if value is None else [value]
    try:
        return [parse_count(part) for part in value.split(",")]
    except ValueError:
        raise ConfigError(
            "kv_tokens", f"expected tokens, one number or one per instance such as 1K,2K, got {value!r}"
        ) from None


@click.pass_context
def _command(ctx: click.Context, /, **params: Any) -> int:
    settings = given(ctx, InstanceConfig, params)
    for name in ("kv_tokens", *PER_PROCESS):
        settings.pop(name, None)
    if not params["model"]:
        raise ConfigError("model", "is not set", "give --model DIR")
    check_model_dir(settings.pop("model"))
    gmanager = load_table(Path(ctx.meta[CONFIG_PATH]), "gmanager") if CONFIG_PATH in ctx.meta else {}
    port = params["port"]
    if ctx.get_parameter_source("port") is ParameterSource.DEFAULT:
        port = gmanager.get("port", port)
    strong = (ParameterSource.COMMANDLINE, ParameterSource.ENVIRONMENT)
    stronger = {name for name in settings if ctx.get_parameter_source(name) in strong}
    console = Console(markup=False, highlight=False)
    with signals_interrupt():
        console.print(
            f"starting a gManager and {params['instances']} instances of {params['model']} ...", soft_wrap=True
        )
        cluster = LocalCluster(
            params["model"],
            instances=params["instances"],
            kv_tokens=params["kv_tokens"],
            port=port,
            gmanager_options={name: value for name, value in gmanager.items() if name not in ("port", *stronger)},
            start_timeout_s=params["start_timeout"],
            stop_timeout_s=params["shutdown_timeout_s"] + 10.0,
            log_dir=params["log_dir"],
            **settings,
        )
        with cluster:
            try:
                return _watch(cluster, console)
            except KeyboardInterrupt:
                console.print("stopping; running requests may finish, Ctrl-C again ends them")
                return 0


def _watch(cluster: LocalCluster, console: Console) -> int:
    """Show the cluster until all its instances are dead, which is exit code 1."""
    console.print(f"ready at {cluster.address}", soft_wrap=True)
    for handle in cluster.instances:
        console.print(
            f"{handle.instance_id}: pid {handle.pid}, {handle.address}, log {handle.log_path}", soft_wrap=True
        )
    console.print(f'try: distkv generate "Once upon a time" --address {cluster.address}', soft_wrap=True)
    client = cluster.client()
    dead: set[str] = set()
    with (
        Live(console=console, auto_refresh=False, transient=True)
        if console.is_terminal
        else contextlib.nullcontext() as live
    ):
        while len(dead & {handle.name for handle in cluster.instances}) < len(cluster.instances):
            for child in (cluster.gmanager, *cluster.instances):
                if not child.alive and child.name not in dead:
                    dead.add(child.name)
                    console.print(f"{child.name} died: {how_it_ended(child.exit_code)}; the others go on", style="red")
                    console.print(child.last_log(), style="dim", soft_wrap=True)
            if isinstance(live, Live):
                live.update(_picture(client), refresh=True)
            else:
                sys.stdout.flush()
            time.sleep(PERIOD_S)
    console.print("no instance is left", style="red")
    return 1


def _picture(client: Client) -> Group:
    try:
        return Group(status_tables(client.statuses()))
    except ClusterUnreachable as error:
        return Group(Text(str(error), style="red"))


command = click.Command(
    "up",
    callback=_command,
    params=[
        *(option for option in setting_options(InstanceConfig, without=PER_PROCESS) if option.name not in REPLACED),
        click.Option(
            ["--kv-tokens"],
            callback=_pools,
            envvar="DISTKV_KV_TOKENS",
            metavar="N[,N...]",
            help="KV pool in tokens: of every instance, or one number for each.",
        ),
        click.Option(
            ["--instances"], type=click.IntRange(min=1), default=2, show_default=True, help="How many instances."
        ),
        click.Option(
            ["--port"],
            type=click.IntRange(0, 65535),
            default=7070,
            envvar="DISTKV_PORT",
            show_default=True,
            help="TCP port of the gManager; 0 takes a free one.",
        ),
        click.Option(
            ["--start-timeout"], type=float, default=600.0, show_default=True, help="Seconds until all must be ready."
        ),
        click.Option(
            ["--log-dir"], type=click.Path(path_type=Path), help="Keep the processes' logs in this directory."
        ),
    ],
    help=HELP,
    context_settings={"max_content_width": 100},
)
