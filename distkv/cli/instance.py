"""`distkv-instance`: one replica, that is an rManager and the engine worker it starts."""

from __future__ import annotations

import sys
from typing import Any

import click
import msgspec
import structlog

from distkv.actors.rmanager import run as run_rmanager
from distkv.cli.daemon import daemon_options, serve
from distkv.cli.failures import run
from distkv.cli.options import resolve, setting_options
from distkv.config import InstanceConfig, check_model_dir, resolve_auto
from distkv.log import configure

# Beyond shutdown_timeout_s: giving back loans and ending the worker.
DRAIN_GRACE_S = 10.0
HELP = """Run an instance: an rManager, which decides, and an engine worker, which computes. It joins the cluster of its
gManager, serves requests, and lends and borrows KV memory. SIGTERM drains it.

\b
Examples:
  distkv-instance --model ./Llama-3.2-1B
  distkv-instance --model ./Llama-3.2-1B --kv-cache-memory-bytes 4G --max-model-len 32K
  distkv-instance --config configs/local.toml --threads 4
  DISTKV_MODEL=./Llama-3.2-1B distkv-instance --print-config
"""


@click.pass_context
def _command(ctx: click.Context, /, **params: Any) -> int:
    config = resolve_auto(resolve(ctx, InstanceConfig, params))
    check_model_dir(config.model)
    configure("rmanager", config.instance_id, config.log_level, config.log_json)
    structlog.get_logger().info("configured", **msgspec.to_builtins(config))
    return serve(
        lambda ready, stop: run_rmanager(config, ready, stop),
        drain_s=config.shutdown_timeout_s + DRAIN_GRACE_S,
        ready_fd=params["ready_fd"],
        lifeline_fd=params["lifeline_fd"],
    )


command = click.Command(
    "distkv-instance",
    callback=_command,
    params=[*setting_options(InstanceConfig), *daemon_options()],
    help=HELP,
    context_settings={"max_content_width": 100},
)


def main() -> None:
    """Entry point of the console script."""
    sys.exit(run(command))


if __name__ == "__main__":
    main()
