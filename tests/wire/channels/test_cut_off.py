"""A host that vanishes without a word is noticed in some seconds, with and without data under way."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
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

NAMESPACE, HERE, THERE = "distkv-test", "dkv-here", "dkv-there"
ADDRESS = "10.99.7.2"

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

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(os.geteuid() != 0 or shutil.which("ip") is None, reason="needs root, and ip of iproute2"),
]


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


@pytest.fixture
def address() -> Iterator[str]:
    """That of a server in a network namespace of its own, at the other end of a link."""
    with contextlib.ExitStack() as stack:
        try:
            ip("netns", "add", NAMESPACE)
        except subprocess.CalledProcessError as error:
            pytest.skip(f"no network namespace can be made: {error.stderr!r}")
        stack.callback(ip, "netns", "del", NAMESPACE)
        ip("link", "add", HERE, "type", "veth", "peer", "name", THERE)
        stack.callback(ip, "link", "del", HERE)
        ip("link", "set", THERE, "netns", NAMESPACE)
        ip("addr", "add", "10.99.7.1/24", "dev", HERE)
        ip("link", "set", HERE, "up")
        ip("-n", NAMESPACE, "addr", "add", f"{ADDRESS}/24", "dev", THERE)
        ip("-n", NAMESPACE, "link", "set", THERE, "up")
        command = ["ip", "netns", "exec", NAMESPACE, sys.executable, "-c", SERVER, f"tcp://{ADDRESS}:7777"]
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
