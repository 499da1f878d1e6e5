"""Stands in for the daemons as processes: the real flags, signals and lifeline around the fakes.

An instance whose model is a file named "dies" ends before it is ready; "hangs" never becomes ready; "stays" ignores
its stop event; "stalls" answers requests with their first token and no other. A gateway's health check passes from the
second time on, but with "hangs" it never does.
"""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from typing import Any

import click
import msgspec

from distkv.cli.daemons.daemon import daemon_options, serve
from distkv.cli.exit_codes import run
from distkv.cli.options import resolve, setting_options
from distkv.config import SECTIONS, GatewayConfig, GManagerConfig, InstanceConfig
from distkv.errors import CheckpointError
from distkv.wire.channel import ClientChannel
from distkv.wire.envelope_factory import EnvelopeFactory
from distkv.wire.inboxes import GMANAGER_CONNECTION
from distkv.wire.messages.envelope import Control
from distkv.wire.messages.to_gmanager import Join
from tests.client.fakes import FakeGManager, FakeInstance, count_up, first_only


class JoinedGManager(FakeGManager):
    def answers(self, route: bytes, body: Control) -> list[Any]:
        if isinstance(body, Join):
            self.members.append(body.member)
            return []
        return super().answers(route, body)


async def run_gmanager(config: GManagerConfig, ready: Any, stop: asyncio.Event) -> int:
    server = JoinedGManager([], config.port)
    ready({"address": server.address})
    await stop.wait()
    server.die()
    return 0


async def run_instance(config: InstanceConfig, ready: Any, stop: asyncio.Event) -> int:
    what = Path(config.engine.model).name
    if what == "dies":
        raise CheckpointError(config.engine.model, "it has no weights")
    if what == "hangs":
        await stop.wait()
        return 0
    worker = await asyncio.create_subprocess_exec(sys.executable, "-c", "import time; time.sleep(1000)")
    server = FakeInstance(config.instance_id, first_only if what == "stalls" else count_up)
    member = msgspec.structs.replace(
        server.member(), pid=os.getpid(), worker_pid=worker.pid, total_blocks=(config.engine.kv_tokens or 0) // 16
    )
    channel = ClientChannel.connect(config.gmanager[0], GMANAGER_CONNECTION)
    channel.send(EnvelopeFactory(config.instance_id).wrap(Join(member=member, compat="x")))
    ready({"address": server.address, "worker_pid": worker.pid})
    await stop.wait()
    if what == "stays":
        await asyncio.Event().wait()
    channel.close()
    server.die()
    worker.kill()
    await worker.wait()
    return 0


async def run_gateway(config: GatewayConfig, ready: Any, stop: asyncio.Event) -> int:
    asked = 0

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal asked
        asked += 1
        head = await reader.readuntil(b"\r\n\r\n")
        healthy = head.startswith(b"GET /health ") and asked > 1 and Path(config.model).name != "hangs"
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n" if healthy else b"HTTP/1.1 503 Service Unavailable\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(answer, config.host, config.port)
    async with server:
        port = server.sockets[0].getsockname()[1]
        # Told so that tests see what it was started with.
        ready({"address": f"http://{config.host}:{port}", "keys": len(config.api_key), "gmanager": config.gmanager[0]})
        await stop.wait()
    return 0


@click.pass_context
def _gmanager(ctx: click.Context, /, **params: Any) -> int:
    config = resolve(ctx, GManagerConfig, params)
    return serve(
        lambda ready, stop: run_gmanager(config, ready, stop),
        drain_s=5,
        ready_fd=params["ready_fd"],
        lifeline_fd=params["lifeline_fd"],
    )


@click.pass_context
def _instance(ctx: click.Context, /, **params: Any) -> int:
    config = resolve(ctx, InstanceConfig, params)
    return serve(
        lambda ready, stop: run_instance(config, ready, stop),
        drain_s=config.shutdown_timeout_s,
        ready_fd=params["ready_fd"],
        lifeline_fd=params["lifeline_fd"],
    )


@click.pass_context
def _gateway(ctx: click.Context, /, **params: Any) -> int:
    config = resolve(ctx, GatewayConfig, params)
    return serve(
        lambda ready, stop: run_gateway(config, ready, stop),
        drain_s=config.shutdown_timeout_s,
        ready_fd=params["ready_fd"],
        lifeline_fd=params["lifeline_fd"],
    )


def main(section: str) -> None:
    callback = {"gmanager": _gmanager, "instance": _instance, "gateway": _gateway}[section]
    schema = SECTIONS[section]
    sys.exit(run(click.Command("fake", callback=callback, params=[*setting_options(schema), *daemon_options()])))
