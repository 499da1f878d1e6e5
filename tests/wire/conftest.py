from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest
import uvloop

from distkv.wire.channel import ClientChannel, ServerChannel
from distkv.wire.envelope_factory import EnvelopeFactory
from distkv.wire.inboxes import CAPTURE
from distkv.wire.messages.envelope import Control


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Channels keep their promises on both loops."""
    return {"uvloop": uvloop.new_event_loop, "asyncio": asyncio.new_event_loop}


@pytest.fixture
async def server() -> AsyncIterator[ServerChannel[Control]]:
    async with ServerChannel.bind("tcp://127.0.0.1:0", CAPTURE, name="b", max_message_bytes=100_000) as server:
        yield server


@pytest.fixture
async def client(server: ServerChannel[Control]) -> AsyncIterator[ClientChannel[Control]]:
    async with ClientChannel.connect(server.address, CAPTURE) as client:
        yield client


@pytest.fixture
def envelopes() -> EnvelopeFactory:
    return EnvelopeFactory("a")
