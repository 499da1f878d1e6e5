"""`distkv-gateway`: the OpenAI-compatible HTTP API of a cluster."""

from __future__ import annotations

import sys

from distkv.cli.daemons.daemon_command import Daemon, daemon_command
from distkv.cli.exit_codes import run
from distkv.config import GatewayConfig, model_dir

# Beyond drain_wait_s and shutdown_timeout_s: closing connections.
DRAIN_GRACE_S = 5.0
HELP = """Run a gateway: the OpenAI-compatible HTTP API of a cluster, with streaming, metrics and health. It holds no KV
memory; several of them may serve one cluster. SIGTERM drains it.

\b
Examples:
  distkv-gateway --model ./Llama-3.2-1B
  distkv-gateway --model ./Llama-3.2-1B --served-model-name llama --port 8080 --gmanager tcp://10.0.0.1:7070
  distkv-gateway --config configs/local.toml --print-config
  DISTKV_API_KEY=... distkv-gateway --model ./Llama-3.2-1B --host 0.0.0.0
"""


def _prepare(config: GatewayConfig) -> Daemon:
    from distkv.gateway.process import run as run_gateway

    model_dir(config.model)
    return Daemon("gateway", config, run_gateway, config.drain_wait_s + config.shutdown_timeout_s + DRAIN_GRACE_S)


command = daemon_command("distkv-gateway", GatewayConfig, HELP, _prepare)


def main() -> None:
    """Entry point of the console script."""
    sys.exit(run(command))


if __name__ == "__main__":
    main()
