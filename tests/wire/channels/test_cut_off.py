"""A host that vanishes without a word is noticed in some seconds, with and without data under way."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from distkv.wire.channel import ClientChannel
from distkv.wire.envelope_factory import EnvelopeFactory
from distkv.wire.inboxes import CAPTURE
from distkv.wire.messages.to_rmanager import KeepAlive
from distkv.wire.sockets.options import CUT_OFF_S
from tests.wire.cable import ADDRESS, NAMESPACE, THERE, WITHIN, cable, ip, needs_root

SERVER = """
import asyncio, sys
from distkv.wire.channel import ServerChannel
from distkv.wire.inboxes import CAPTURE
async def main():
    async with ServerChannel.bind(sys.argv[1], CAPTURE, insecure=True) as server:
        print(server.address, flush=True)
        while True:
            await server.recv()
asyncio.run(main())
"""

pytestmark = [pytest.mark.slow, needs_root]


@pytest.fixture
def address() -> Iterator[str]:
    """That of a server in a network namespace of its own, at the other end of a link."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(cable())
        command = [*WITHIN, sys.executable, "-c", SERVER, f"tcp://{ADDRESS}:7777"]
        process = stack.enter_context(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
        stack.callback(process.kill)
        assert process.stdout is not None
        yield process.stdout.readline().strip()


@pytest.mark.parametrize("busy", [False, True], ids=["idle", "busy"])
async def test_a_cut_link_is_noticed(address: str, busy: bool) -> None:
    gone = asyncio.Event()
    envelopes = EnvelopeFactory("a")

    async def chatter(client: ClientChannel[KeepAlive]) -> None:
        while True:
            client.send(envelopes.wrap(KeepAlive()))
            await asyncio.sleep(0.1)

    async with ClientChannel.connect(address, CAPTURE, on_disconnected=gone.set) as client:
        async with asyncio.timeout(20):
            await client.wait_connected()
        talking = asyncio.create_task(chatter(client)) if busy else None
        await asyncio.sleep(0.5)
        ip("-n", NAMESPACE, "link", "set", THERE, "down")
        cut_s = time.monotonic()
        async with asyncio.timeout(2 * CUT_OFF_S):
            await gone.wait()
        noticed_s = time.monotonic() - cut_s
        if talking is not None:
            talking.cancel()
        client.abort()
    assert noticed_s < CUT_OFF_S + 3
