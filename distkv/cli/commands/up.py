"""`distkv up`: a cluster on this machine, until Ctrl-C."""

from __future__ import annotations

import contextlib
import json
import shlex
import socket
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource
from rich.console import Console
from rich.live import Live

from distkv.cli.live.polling import PERIOD_S, Poller
from distkv.cli.live.terminal import is_live, render_to_fit
from distkv.cli.options import CONFIG_PATH, given, setting_option, setting_options
from distkv.cli.signals import signals_interrupt
from distkv.client.local.child import describe_exit
from distkv.client.local.cluster import LocalCluster
from distkv.config import (
    DEMO_MODEL,
    GatewayConfig,
    InstanceConfig,
    load_file,
    load_table,
    model_dir,
    parse_count,
    settings_of,
)
from distkv.errors import ConfigError

PER_PROCESS = ("instance_id", "gmanager", "host", "data_host", "port", "data_port", "insecure", "trace_file")
REPLACED = ("model", "kv_tokens", "print_config")
OF_GATEWAY = ("served_model_name", "api_key")
LOOPBACK = "127.0.0.1"
PROMPT = "Once upon a time"
DEMO_PROMPT = (  # all that the demo model does is to find facts
    "The access code of the north station is 48213. Question: What is the access code of the north station? Answer:"
)
HELP = """Start a gManager, several instances of a model and a gateway on this machine, and show what they do until
Ctrl-C. One that dies is reported and takes nothing else down. Settings are those of distkv-instance, for each of them;
a config file may have [gmanager] and [gateway] tables too.

\b
Examples:
  distkv up --instances 3 --kv-tokens 4K --dtype float32
  distkv up --model ./Llama-3.2-1B --instances 3
  distkv up --model ./tiny --instances 3 --kv-tokens 1024 --dtype float32 --threads 1
  distkv up --model ./tiny --instances 3 --kv-tokens 256,512,1K --port 7171 --http-port 8080
  distkv up --config configs/local.toml --model ./tiny --no-gateway
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
    settings.pop("model", None)
    model = params["model"]
    model_dir(model)
    # What is given for all on the command line wins over the tables of a file.
    strong = (ParameterSource.COMMANDLINE, ParameterSource.ENVIRONMENT)
    stronger = {name for name in settings if ctx.get_parameter_source(name) in strong}
    gmanager, gateway = (_table(ctx, section, stronger) for section in ("gmanager", "gateway"))
    gateway |= {name: params[name] for name in OF_GATEWAY if ctx.get_parameter_source(name) in strong}
    port, http_port = _port(ctx, "port", gmanager), _port(ctx, "http_port", gateway)
    _check_free("--port", str(gmanager.get("host", LOOPBACK)), port)
    if params["gateway"]:
        _check_free("--http-port", str(gateway.get("host", LOOPBACK)), http_port)
    console = Console(markup=False, highlight=False)
    with signals_interrupt():
        parts = ["a gManager", f"{params['instances']} instance" + ("s" if params["instances"] > 1 else "")]
        started = f"{', '.join(parts)} and a gateway" if params["gateway"] else " and ".join(parts)
        console.print(f"starting {started} for {model} ...", soft_wrap=True)
        started_s = time.monotonic()

        def show_ready(name: str) -> None:
            console.print(f"{name} is ready after {time.monotonic() - started_s:.1f} s", soft_wrap=True)

        cluster = LocalCluster(
            model,
            instances=params["instances"],
            kv_tokens=params["kv_tokens"],
            port=port,
            gateway=params["gateway"],
            http_port=http_port,
            gmanager_options=gmanager,
            gateway_options=gateway if params["gateway"] else None,
            start_timeout_s=params["start_timeout"],
            stop_timeout_s=params["shutdown_timeout_s"] + 10.0,
            log_dir=params["log_dir"],
            on_ready=show_ready,
            **settings,
        )
        with cluster:
            try:
                _introduce(cluster, gateway, model, console)
                return _watch(cluster, console)
            except KeyboardInterrupt:
                console.print("stopping; running requests may finish, Ctrl-C again ends them")
                return 0


def _table(ctx: click.Context, section: str, stronger: set[str]) -> dict[str, Any]:
    if CONFIG_PATH not in ctx.meta:
        return {}
    path = Path(ctx.meta[CONFIG_PATH])
    # Outside tables, what instances have too comes with their settings, or is chosen here.
    plain = {name: value for name, value in load_file(path, section).items() if name not in settings_of(InstanceConfig)}
    return {name: value for name, value in (plain | load_table(path, section)).items() if name not in stronger}


def _port(ctx: click.Context, name: str, table: dict[str, Any]) -> int:
    """The port of a parameter, or else of a file's table, which loses it."""
    in_file = table.pop("port", ctx.params[name])
    return int(in_file if ctx.get_parameter_source(name) is ParameterSource.DEFAULT else ctx.params[name])


def _check_free(flag: str, host: str, port: int) -> None:
    """Raise ConfigError if nobody could listen there: sooner and clearer than the process that is to."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host.strip("[]"), port))
        except OSError as error:
            raise ConfigError(
                flag,
                f"cannot listen on {host}:{port}: {error.strerror}",
                f"give another with {flag}, 0 takes a free one",
            ) from None


def _introduce(cluster: LocalCluster, gateway: Mapping[str, Any], model: str, console: Console) -> None:
    """Say where everything is and what to do with it."""
    is_demo = model == DEMO_MODEL
    prompt = DEMO_PROMPT if is_demo else PROMPT
    console.print(f"ready at {cluster.address}", soft_wrap=True)
    for one in cluster.instances:
        console.print(f"{one.instance_id}: pid {one.pid}, {one.address}, log {one.log_path}", soft_wrap=True)
    if cluster.gateway is not None:
        where = f"{cluster.http_url}, log {cluster.gateway.log_path}"
        console.print(f"gateway: pid {cluster.gateway.pid}, {where}", soft_wrap=True)
        body: dict[str, Any] = {"model": (gateway.get("served_model_name") or [model])[0], "prompt": prompt}
        if is_demo:
            body["temperature"] = 0
        key = '-H "Authorization: Bearer KEY" ' if gateway.get("api_key") else ""
        data = f"-H 'Content-Type: application/json' -d {shlex.quote(json.dumps(body))}"
        console.print(f"try: curl {cluster.http_url}/v1/completions {key}{data}", soft_wrap=True)
    greedy = " --temperature 0" if is_demo else ""
    console.print(f'try: distkv generate "{prompt}" --address {cluster.address}{greedy}', soft_wrap=True)


def _watch(cluster: LocalCluster, console: Console) -> int:
    """Show the cluster until all its instances are dead, which is exit code 1."""
    poller = Poller(cluster.client(), "Ctrl-C ends it")
    children = [cluster.gmanager, *([cluster.gateway] if cluster.gateway else []), *cluster.instances]
    dead: set[str] = set()
    live = Live(console=console, auto_refresh=False, transient=True) if is_live(console) else None
    with live or contextlib.nullcontext():
        while any(handle.name not in dead for handle in cluster.instances):
            for child in children:
                if not child.alive and child.name not in dead:
                    dead.add(child.name)
                    console.print(f"{child.name} died: {describe_exit(child.exit_code)}; the others go on", style="red")
                    console.print(child.last_log(), style="dim", soft_wrap=True)
            if live is not None:
                live.update(render_to_fit(poller.poll(), console), refresh=True)
            else:
                sys.stdout.flush()
            time.sleep(PERIOD_S)
    console.print("no instance is left", style="red")
    return 1


command = click.Command(
    "up",
    callback=_command,
    params=[
        *(option for option in setting_options(InstanceConfig, without=PER_PROCESS) if option.name not in REPLACED),
        click.Option(
            ["--model"],
            type=click.Path(file_okay=False),
            default=DEMO_MODEL,
            envvar="DISTKV_MODEL",
            show_default=True,
            metavar="TEXT",
            help="Directory of a Hugging Face checkpoint, or the name of the one that comes with distkv.",
        ),
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
            ["--gateway/--no-gateway"], default=True, show_default=True, help="Whether to serve HTTP (OpenAI's API)."
        ),
        click.Option(
            ["--http-port"],
            type=click.IntRange(0, 65535),
            default=8000,
            show_default=True,
            help="TCP port of HTTP; 0 takes a free one.",
        ),
        *(setting_option(settings_of(GatewayConfig)[name]) for name in OF_GATEWAY),
        click.Option(
            ["--start-timeout"],
            type=click.FloatRange(min=0, min_open=True),
            default=600.0,
            show_default=True,
            metavar="SECONDS",
            help="Seconds until all must be ready.",
        ),
        click.Option(
            ["--log-dir"],
            type=click.Path(path_type=Path, file_okay=False),
            help="Keep the processes' logs in this directory.",
        ),
    ],
    help=HELP,
    context_settings={"max_content_width": 100},
)
