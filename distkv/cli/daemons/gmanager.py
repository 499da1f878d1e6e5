"""`distkv-gmanager`: the process that knows the cluster and recommends."""

from __future__ import annotations

import sys

from distkv.cli.daemons.daemon_command import Daemon, daemon_command
from distkv.cli.exit_codes import run
from distkv.config import GManagerConfig

DRAIN_S = 5.0
HELP = """Run a gManager: it keeps the ledger of loans and the member list, recommends creditors, and tells clients
where to go. It is never in the path of a token; instances go on while it is away.

\b
Examples:
  distkv-gmanager
  distkv-gmanager --port 7171 --log-json
  distkv-gmanager --config configs/local.toml --print-config
"""


def _prepare(config: GManagerConfig) -> Daemon:
    from distkv.actors.gmanager.process import run as run_gmanager

    return Daemon("gmanager", config, run_gmanager, DRAIN_S)


command = daemon_command("distkv-gmanager", GManagerConfig, HELP, _prepare)


def main() -> None:
    """Entry point of the console script."""
    sys.exit(run(command))


if __name__ == "__main__":
    main()
