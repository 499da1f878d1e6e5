"""The gateway process: reads the model's files, finds the cluster, serves HTTP until it is stopped."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from contextlib import aclosing
from typing import Any

import structlog

from distkv.client.async_client import AsyncClient
from distkv.client.owned_tasks import OwnedTasks
from distkv.config import GatewayConfig
from distkv.gateway.api.app import make_app
from distkv.gateway.api.service import Service
from distkv.gateway.connections.bodies import Bodies
from distkv.gateway.connections.garbage import collect_when_idle
from distkv.gateway.connections.http_server import CLOSE_S, listen, serving
from distkv.gateway.metrics.cluster_metrics import ClusterCollector
from distkv.gateway.metrics.request_metrics import Metrics
from distkv.gateway.operations.cluster import Cluster
from distkv.gateway.operations.concurrency_limit import ConcurrencyLimit
from distkv.gateway.operations.held_responses import HeldResponses
from distkv.gateway.prompting.readers import Readers
from distkv.gateway.prompting.served_model import ServedModel
from distkv.wire.address import join_host_port


async def run(config: GatewayConfig, ready: Callable[[dict[str, Any]], None], stop: asyncio.Event) -> int:
    """Serve until `stop`, then drain; returns the exit code.

    `ready` gets {"address": "http://host:port", ...} when HTTP is answered, whether instances are ready or not.
    Raises ConfigError when the address, the TLS files or a file of the model cannot be used, CheckpointError for a
    broken tokenizer.
    """
    model = await asyncio.to_thread(ServedModel.load, config)
    with listen(config.host, config.port) as listener:
        clients = [AsyncClient(address) for address in config.gmanager]
        async with Cluster(clients, config.wait_for, model.vocabulary) as cluster:
            metrics = Metrics(model.names[0])
            metrics.registry.register(
                ClusterCollector(model.names[0], lambda: cluster.last_statuses, lambda: cluster.last_state)
            )
            limit, bodies = ConcurrencyLimit(config.max_concurrent_requests), Bodies(config.max_body_bytes)
            readers = Readers(config, model)
            service = Service(config, model, cluster, limit, bodies, HeldResponses(), readers, metrics)
            async with aclosing(readers), serving(make_app(service), config, listener):
                scheme = "https" if config.ssl_certfile else "http"
                address = f"{scheme}://{join_host_port(config.host, listener.getsockname()[1])}"
                ready({"address": address, "pid": os.getpid()})
                async with OwnedTasks() as tasks:
                    tasks.start(collect_when_idle(limit), name="garbage")
                    await stop.wait()
                    await drain(service)
    structlog.get_logger().info("stopped")
    return 0


async def drain(service: Service) -> None:
    """Fail the health check, go on for drain_wait_s, refuse new requests, let running ones finish
    within shutdown_timeout_s, then end them with an error."""
    config, limit, log = service.config, service.limit, structlog.get_logger()
    limit.unready()
    log.info("draining", running=limit.running, wait_s=config.drain_wait_s)
    await asyncio.sleep(config.drain_wait_s)
    limit.close()
    if not await limit.empty(config.shutdown_timeout_s):
        log.warning("ending requests that did not finish in time", running=limit.running)
        await service.cluster.aclose()
        await limit.empty(CLOSE_S)
