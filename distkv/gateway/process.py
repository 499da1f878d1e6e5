"""The gateway process: reads the model's files, finds the cluster, serves HTTP until told to stop."""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import structlog
import uvicorn

from distkv.client.async_client import AsyncClient
from distkv.config import GatewayConfig
from distkv.errors import ConfigError
from distkv.gateway.api.app import make_app
from distkv.gateway.api.service import Service
from distkv.gateway.operations.cluster import Cluster
from distkv.gateway.operations.cluster_metrics import ClusterCollector
from distkv.gateway.operations.concurrency_limit import Gate
from distkv.gateway.operations.metrics import Metrics
from distkv.gateway.prompting.served_model import ServedModel
from distkv.wire.address import join_host_port

KEEP_ALIVE_S = 75
BACKLOG = 2048
# For answers that are on their way to slow readers when everything else has ended.
LAST_WORDS_S = 2


async def run(config: GatewayConfig, ready: Callable[[dict[str, Any]], None], stop: asyncio.Event) -> int:
    """Serve until `stop`, then drain; returns the exit code.

    `ready` gets {"address": "http://host:port", ...} when HTTP is answered, whether instances are ready or not.
    Raises ConfigError when the address, the TLS files or a file of the model cannot be used, CheckpointError for a
    broken tokenizer.
    """
    model = await asyncio.to_thread(ServedModel.load, config)
    with listen(config.host, config.port) as listener:
        async with Cluster([AsyncClient(address) for address in config.gmanager]) as cluster:
            metrics = Metrics(model.names[0])
            metrics.registry.register(ClusterCollector(model.names[0], lambda: cluster.last_statuses))
            service = Service(config, model, cluster, Gate(config.max_concurrent_requests), metrics)
            async with serving(http_settings(service), listener):
                scheme = "https" if config.ssl_certfile else "http"
                address = f"{scheme}://{join_host_port(config.host, listener.getsockname()[1])}"
                ready({"address": address, "pid": os.getpid()})
                await stop.wait()
                await drain(service)
    structlog.get_logger().info("stopped")
    return 0


async def drain(service: Service) -> None:
    """Leave in good order: fail the health check, go on for drain_wait_s, refuse new requests, let running ones finish
    within shutdown_timeout_s, then end them with an error."""
    config, gate, log = service.config, service.gate, structlog.get_logger()
    gate.unready()
    log.info("draining", running=gate.running, wait_s=config.drain_wait_s)
    await asyncio.sleep(config.drain_wait_s)
    gate.close()
    if not await gate.empty(config.shutdown_timeout_s):
        log.warning("ending requests that did not finish in time", running=gate.running)
        await service.cluster.close()
        await gate.empty(LAST_WORDS_S)


def listen(host: str, port: int) -> socket.socket:
    """A socket that is bound but does not listen yet. Raises ConfigError when the address cannot be had."""
    try:
        found = socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError as error:
        raise ConfigError("host", f"{host} is no address of this machine: {error}") from None
    family, kind, protocol, _, address = found[0]
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
    except OSError as error:
        listener.close()
        raise ConfigError("port", f"cannot listen on {join_host_port(host, port)}: {error.strerror or error}") from None
    return listener


def http_settings(service: Service) -> uvicorn.Config:
    """How uvicorn serves the gateway. Raises ConfigError naming a TLS file that cannot be used."""
    config = service.config
    for key in ("ssl_certfile", "ssl_keyfile"):
        file = getattr(config, key)
        try:
            if file is not None:
                Path(file).open("rb").close()
        except OSError as error:
            raise ConfigError(key, f"{file} cannot be read: {error.strerror or error}") from None
    settings = uvicorn.Config(
        make_app(service),
        http="httptools",
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        backlog=BACKLOG,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=LAST_WORDS_S,
        ssl_certfile=config.ssl_certfile,
        ssl_keyfile=config.ssl_keyfile,
    )
    try:
        settings.load()
    except ssl.SSLError as error:
        problem = f"{config.ssl_certfile} and {config.ssl_keyfile} are no certificate and its key: {error}"
        raise ConfigError("ssl_certfile", problem) from None
    return settings


@asynccontextmanager
async def serving(settings: uvicorn.Config, listener: socket.socket) -> AsyncIterator[None]:
    """HTTP is answered within the block. uvicorn's own way to run would take over our signals."""
    server = uvicorn.Server(settings)
    server.lifespan = settings.lifespan_class(settings)
    await server.startup(sockets=[listener])
    ticking = asyncio.create_task(server.main_loop(), name="http")
    try:
        yield
    finally:
        ticking.cancel()
        await asyncio.gather(ticking, return_exceptions=True)
        await server.shutdown(sockets=[listener])
