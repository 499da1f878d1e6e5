"""`distkv serve`: `distkv up` for those who know `vllm serve`."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import click

from distkv.cli.local.options import cluster_options
from distkv.cli.local.running import run_cluster
from distkv.cli.vllm_flags import KnowsVllm, check_no_model_taken, translated

HELP = """Serve MODEL over HTTP with the flags of `vllm serve`. It is distkv up: --port is that of HTTP, and
--data-parallel-size the number of instances, one if it is not given, whose KV memory is one pool. A flag of vLLM's that
has no meaning here is refused with a sentence that says what to do instead.

\b
Examples:
  distkv serve ./Llama-3.2-1B --port 8000
  distkv serve ./Llama-3.2-1B --data-parallel-size 3 --max-model-len 32K --served-model-name llama
  distkv serve ./Llama-3.2-1B --host 0.0.0.0 --api-key "$KEY" --restart 5
"""


class _Serve(KnowsVllm):
    def ours(self, arguments: Sequence[str], known: Collection[str]) -> list[str]:
        return translated(arguments, known)


@click.pass_context
def _command(ctx: click.Context, /, **params: Any) -> int:
    check_no_model_taken(ctx, params)
    return run_cluster(ctx, params)


command = _Serve(
    "serve",
    callback=_command,
    params=cluster_options(
        instances=("--data-parallel-size", "--instances"),
        default_instances=1,
        port="--gmanager-port",
        http_port="--port",
    ),
    help=HELP,
    context_settings={"max_content_width": 100},
)
