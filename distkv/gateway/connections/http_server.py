"""The HTTP server: its socket, its settings, its lifetime."""

from __future__ import annotations

import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import uvicorn
from starlette.types import ASGIApp

from distkv.client.owned_tasks import OwnedTasks
from distkv.config import GatewayConfig
from distkv.errors import ConfigError
from distkv.gateway.connections.acceptor import Acceptor
from distkv.gateway.connections.descriptors import most_connections, most_waiting
from distkv.gateway.connections.http_connection import Connections, LimitedConnection
from distkv.wire.address import join_host_port
from distkv.wire.sockets.options import BACKLOG

KEEP_ALIVE_S = 75
CLOSE_S = 2
"""For responses that are on their way to slow clients when everything else has ended."""


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


def http_settings(app: ASGIApp, config: GatewayConfig) -> uvicorn.Config:
    """How uvicorn serves an application. Raises ConfigError naming a TLS file that cannot be used."""
    for key in ("ssl_certfile", "ssl_keyfile"):
        file = getattr(config, key)
        try:
            if file is not None:
                Path(file).open("rb").close()
        except OSError as error:
            raise ConfigError(key, f"{file} cannot be read: {error.strerror or error}") from None
    settings = uvicorn.Config(
        app,
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        backlog=BACKLOG,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=CLOSE_S,
        ssl_certfile=config.ssl_certfile,
        ssl_keyfile=config.ssl_keyfile,
        ssl_keyfile_password="none",  # without any, who has an encrypted key is asked on a terminal
    )
    try:
        settings.load()
    except ssl.SSLError as error:
        problem = (
            f"{config.ssl_certfile} and {config.ssl_keyfile} are no certificate and its key without a password: {error}"
        )
        raise ConfigError("ssl_certfile", problem) from None
    return settings


@asynccontextmanager
async def serving(app: ASGIApp, config: GatewayConfig, listener: socket.socket) -> AsyncIterator[None]:
    """HTTP is answered within the block. uvicorn's own way to run would take over our signals. Raises as
    `http_settings`."""
    connections = Connections(most_connections())
    settings = http_settings(app, config)
    server = uvicorn.Server(settings)
    server.lifespan = settings.lifespan_class(settings)
    listener.setblocking(False)
    listener.listen(settings.backlog)
    await server.startup(sockets=[])
    async with OwnedTasks() as tasks:
        tasks.start(server.main_loop(), name="http")
        how = {"config": settings, "server_state": server.server_state, "app_state": server.lifespan.state}
        make = partial(LimitedConnection, connections, **how)
        acceptor = Acceptor(
            listener,
            make,
            most_waiting(),
            connections.turns,
            tasks,
            settings.ssl,
            connections.make_room,
            room=lambda: max(0, connections.most - len(server.server_state.connections)),
        )
        try:
            yield
        finally:
            acceptor.close()
            await server.shutdown(sockets=[listener])
