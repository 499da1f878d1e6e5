"""Floods of real daemons, by recipes that once ended processes (see tests/wire/channels/abort_recipes.py).

`python -m tests.cluster.attacked.floods gmanager|instance|gateway TRIES`: whether the daemon still runs, and answers,
after each of them. A gManager and an instance are flooded by strangers, a gateway by the instances it has asked, while
its event loop stands still and ZeroMQ's thread goes on.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx

from distkv import AsyncClient, LocalCluster
from distkv.client.local import launch
from distkv.client.local.child import Child, wait_ready
from distkv.client.local.handles import GatewayHandle
from distkv.demo.random_checkpoint import make_checkpoint
from distkv.wire.codec import encode_envelope
from distkv.wire.messages.envelope import Control
from distkv.wire.messages.to_client import TokenChunk
from distkv.wire.messages.to_gmanager import Leave
from distkv.wire.messages.to_rmanager import StatusQuery
from tests.checkpoints import TEXT
from tests.client.fakes import FakeGManager, FakeInstance
from tests.cluster.conftest import started
from tests.cluster.driving import eventually
from tests.cluster.standstill import main_thread_stands_still
from tests.wire.channels.abort_recipes import ENVELOPES, FRAME, MESSAGES, flood_and_leave, ping_and_reset

OF_STRANGER = encode_envelope(ENVELOPES.wrap(Leave(instance_id="stranger", incarnation=1)))
OF_NOBODY = TokenChunk(request_id="nobody's", token_ids=(0,), text="0 ")
AT_ONCE = 20
INSTANCES = 25
"""That flood a gateway at the same time."""
STANDS_STILL_S = 6.0
SERVES_S = 60.0


async def flood_by_strangers(cluster: LocalCluster, daemon: Child, address: str, frame: bytes, tries: int) -> None:
    """Half of the tries each way."""
    for done in range(0, tries, 2 * AT_ONCE):
        at_once = min(AT_ONCE, -(-(tries - done) // 2))
        floods: tuple[Callable[[str, int, bytes], None], ...] = (flood_and_leave, ping_and_reset)
        with main_thread_stands_still(daemon.pid):
            still = asyncio.create_task(asyncio.sleep(STANDS_STILL_S))
            await asyncio.gather(*(asyncio.to_thread(flood, address, at_once, frame) for flood in floods))
            await still
        assert daemon.alive, f"{daemon.name} ended with {daemon.exit_code}\n{daemon.last_log()}"
        async with AsyncClient(cluster.address) as client:
            await eventually(lambda: are_ready(client), SERVES_S, "all are ready again")


async def are_ready(client: AsyncClient) -> bool:
    return {status.instance.state for status in await client.statuses()} == {"ready"}


async def flood_gmanager(model: Path, tries: int) -> None:
    with started(model, 2, 512) as cluster:
        await flood_by_strangers(cluster, cluster.gmanager, cluster.address, OF_STRANGER, tries)


async def flood_instance(model: Path, tries: int) -> None:
    with started(model, 2, 512) as cluster:
        instance = cluster.instances[1]
        await flood_by_strangers(cluster, instance, instance.address, FRAME, tries)


class FloodingInstance(FakeInstance):
    """Has a lot to say to whoever asked it for its status last."""

    asker = b""

    def answers(self, route: bytes, body: Control) -> list[Any]:
        if isinstance(body, StatusQuery):
            self.asker = route
        return super().answers(route, body)

    def flood(self) -> None:
        for _ in range(MESSAGES):
            self.say(self.asker, OF_NOBODY)


async def flood_gateway(model: Path, tries: int) -> None:
    """It asks every instance for its status now and then, so each knows a route to it."""
    instances = [FloodingInstance(f"i{index}") for index in range(INSTANCES)]
    gmanager = FakeGManager([one.member() for one in instances])
    settings = {"model": str(model), "gmanager": gmanager.address, "port": 0}
    log = model.parent / "gateway.log"
    gateway = GatewayHandle("gateway", launch.command("gateway", settings), log, launch.environment("gateway"))
    try:
        await asyncio.to_thread(wait_ready, [gateway], time.monotonic() + SERVES_S)
        async with httpx.AsyncClient(base_url=gateway.url, timeout=SERVES_S) as http:
            for done in range(0, tries, INSTANCES):
                for one in instances:
                    one.asker = b""
                await eventually(lambda: all(one.asker for one in instances), SERVES_S, "it asks all of them")
                with main_thread_stands_still(gateway.pid):
                    for one in instances[: tries - done]:
                        one.flood()
                    await asyncio.sleep(STANDS_STILL_S)
                with suppress(httpx.TransportError):
                    assert (await http.post("/v1/completions", json={"prompt": [5], "max_tokens": 2})).is_success
                assert gateway.alive, f"it ended with {gateway.exit_code}\n{gateway.last_log()}"
    finally:
        gateway.close()
        for server in (gmanager, *instances):
            server.die()


FLOODS: dict[str, Callable[[Path, int], Coroutine[Any, Any, None]]] = {
    "gmanager": flood_gmanager,
    "instance": flood_instance,
    "gateway": flood_gateway,
}


async def main(name: str, tries: int) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        await FLOODS[name](make_checkpoint(Path(scratch) / "model", text_for_tokenizer=TEXT), tries)
    print(f"{tries} floods of a {name}: it runs and answers")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2])))
