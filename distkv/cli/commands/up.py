"""`distkv up`: a cluster on this machine, until Ctrl-C."""

from __future__ import annotations

from typing import Any

import click

from distkv.cli.local.options import cluster_options
from distkv.cli.local.running import run_cluster
from distkv.cli.vllm_flags import KnowsVllm

HELP = """Start a gManager, several instances of MODEL and a gateway on this machine, and show what they do until
Ctrl-C. One that dies is reported and takes nothing else down. Every setting of the programs that it starts is a flag
here too, for all that have it; names, addresses and ports between them are chosen. What is for one kind of them only
stands in a table of the config file: [gmanager], [instance] or [gateway]; what is for distkv up itself in [up].

\b
Examples:
  distkv up --instances 3 --kv-tokens 4K --dtype float32
  distkv up ./Llama-3.2-1B --instances 3
  distkv up ./tiny --instances 3 --kv-tokens 1024 --dtype float32 --threads 1
  distkv up ./tiny --instances 3 --kv-tokens 256,512,1K --port 7171 --http-port 8080
  distkv up ./Llama-3.2-1B --host 0.0.0.0 --api-key "$KEY" --ssl-certfile cert.pem --ssl-keyfile key.pem
  distkv up --config configs/local.toml --model ./tiny --no-gateway
  distkv up ./tiny --instances 3 --print-config > cluster.toml
"""


class _Up(KnowsVllm):
    instances = "--instances"


@click.pass_context
def _command(ctx: click.Context, /, **params: Any) -> int:
    return run_cluster(ctx, params)


command = _Up("up", callback=_command, params=cluster_options(), help=HELP, context_settings={"max_content_width": 100})
