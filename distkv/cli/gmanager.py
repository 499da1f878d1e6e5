"""`distkv-gmanager`: the process that knows the cluster and recommends."""

from __future__ import annotations

import sys
from typing import Any

import click
import msgspec
import structlog

from distkv.actors.gmanager import run as run_gmanager
from distkv.cli.daemon import daemon_options, serve
from distkv.cli.failures import run
from distkv.cli.options import resolve, setting_options
from distkv.config import GManagerConfig
from distkv.log import configure

DRAIN_S = 5.0
HELP = """Run a gManager: it keeps the ledger of loans and the member list, recommends creditors, and tells clients
where to go. It is never in the path of a token; instances go on while it is away.

\b
Examples:
  distkv-gmanager
  distkv-gmanager --port 7171 --log-json
  distkv-gmanager --config configs/local.toml --print-config
"""


@click.pass_context
def _command(ctx: click.Context, /, **params: Any) -> int:
    config = resolve(ctx, GManagerConfig, params)
    configure("gmanager", None, config.log_level, config.log_json)
    structlog.get_logger().info("configured", **msgspec.to_builtins(config))
    return serve(
        lambda ready, stop: run_gmanager(config, ready, stop),
        drain_s=DRAIN_S,
        ready_fd=params["ready_fd"],
        lifeline_fd=params["lifeline_fd"],
    )


command = click.Command(
    "distkv-gmanager",
    callback=_command,
    params=[*setting_options(GManagerConfig), *daemon_options()],
    help=HELP,
    context_settings={"max_content_width": 100},
)


def main() -> None:
    """Entry point of the console script."""
    sys.exit(run(command))


if __name__ == "__main__":
    main()
