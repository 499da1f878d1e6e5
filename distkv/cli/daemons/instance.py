"""`distkv-instance`: one replica, that is an rManager and the engine worker it starts."""

from __future__ import annotations

import sys

from distkv.cli.daemons.daemon_command import Daemon, daemon_command
from distkv.cli.exit_codes import run
from distkv.config import InstanceConfig, resolve_auto

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


def _prepare(config: InstanceConfig) -> Daemon:
    from distkv.actors.instance.process import run as run_rmanager

    config = resolve_auto(config)
    return Daemon("rmanager", config, run_rmanager, config.shutdown_timeout_s + DRAIN_GRACE_S, config.instance_id)


command = daemon_command("distkv-instance", InstanceConfig, HELP, _prepare)


def main() -> None:
    """Entry point of the console script."""
    sys.exit(run(command))


if __name__ == "__main__":
    main()
