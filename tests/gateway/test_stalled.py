"""A gateway whose event loop does nothing for some seconds: its clients wait, and lose nothing."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from distkv import LocalCluster
from distkv.client.background import BackgroundLoop
from distkv.config import GatewayConfig, build
from distkv.gateway import process
from tests.gateway.harness import MODEL, events_of, until

STALL_S = 5.0
TOKENS = 240


class OwnLoop:
    """A gateway of a real cluster, in an event loop and a thread of its own."""

    def __init__(self, model: Path, gmanager: str) -> None:
        values = {"model": str(model), "served_model_name": MODEL, "gmanager": gmanager, "port": 0}
        self._config = build(GatewayConfig, values | {"drain_wait_s": 0.0})
        self._loop = BackgroundLoop("gateway")
        self._task: asyncio.Task[int]
        self._stop: asyncio.Event
        self.url = self._loop.call(self._start())

    async def _start(self) -> str:
        facts: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._stop = asyncio.Event()
        self._task = asyncio.create_task(process.run(self._config, facts.set_result, self._stop))
        return str((await facts)["address"])

    def stall(self) -> None:
        """The loop does nothing for STALL_S; returns when it is over."""

        async def block() -> None:
            time.sleep(STALL_S)  # noqa: ASYNC251 - it is what no coroutine may do

        self._loop.call(block())

    def close(self) -> None:
        async def stop() -> int:
            self._stop.set()
            return await self._task

        assert self._loop.call(stop()) == 0
        self._loop.stop()


@pytest.mark.slow
async def test_streams_outlive_a_stall_of_the_gateway(lasting: LocalCluster, checkpoint: Path) -> None:
    """Instances end the requests of a client that is silent for 10 s. The sign of life comes from the event loop, every
    second, so a stall of up to about 8 s costs nothing; nothing that a request can do takes more than milliseconds."""
    gateway = await asyncio.to_thread(OwnLoop, checkpoint, lasting.address)
    try:
        body = {"prompt": [1, 2, 3], "max_tokens": TOKENS, "ignore_eos": True, "stream": True, "temperature": 0}
        async with httpx.AsyncClient(base_url=gateway.url, timeout=60) as http:

            async def is_ready() -> bool:
                return (await http.get("/health")).status_code == 200

            await until(is_ready)
            streams = [asyncio.create_task(http.post("/v1/completions", json=body)) for _ in range(4)]
            begun = f'distkv:time_to_first_token_seconds_count{{model_name="{MODEL}"}} {len(streams)}.0'

            async def have_begun() -> bool:
                return begun in (await http.get("/metrics")).text

            await until(have_begun)
            await asyncio.to_thread(gateway.stall)
            answers = await asyncio.gather(*streams)
    finally:
        await asyncio.to_thread(gateway.close)
    for answer in answers:
        events = events_of(answer.text)
        assert events[-1] == "[DONE]" and "choices" in events[-2], events[-2]
        assert events[-2]["choices"][0]["finish_reason"] == "length"
