"""A long text that a client sends delays no sign of life: tokenizing it lets the event loop run."""

from __future__ import annotations

import asyncio
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

from distkv.actors.instance.actor import InstanceActor
from distkv.actors.instance.connections import GManagerConnections
from distkv.actors.task_scope import task_scope
from distkv.actors.trace import Trace
from distkv.config import InstanceConfig, build
from distkv.control.request.answer.output import NoText
from distkv.control.rmanager.state import RManagerSettings
from distkv.control.rmanager.state_machine import RManager
from distkv.demo.random_checkpoint import make_checkpoint
from distkv.text.tokenizer import Tokenizer
from distkv.types import SamplingParams
from distkv.wire.channel import ClientChannel, ServerChannel
from distkv.wire.envelope_factory import EnvelopeFactory
from distkv.wire.inboxes import CLIENT_CONNECTION, GMANAGER_PORT, RMANAGER_PORT
from distkv.wire.messages import to_gmanager as tg
from distkv.wire.messages import to_rmanager as tr
from distkv.wire.messages.to_client import RequestEnded
from tests.checkpoints import TEXT
from tests.control.parts import make_member

DEADLINE_S = 60.0
HEARTBEAT_S = 0.02
TEXT_BYTES = 3_000_000


async def test_heartbeats_go_on_while_a_long_text_is_tokenized(tmp_path: Path) -> None:
    model = make_checkpoint(tmp_path / "model", vocab=320, text_for_tokenizer=TEXT)
    tokenizer = Tokenizer.from_dir(model)
    settings = RManagerSettings(
        instance_id="a", incarnation=1, block_tokens=1024, num_blocks=8192, vocab_size=9, heartbeat_s=HEARTBEAT_S
    )
    async with (
        ServerChannel.bind("tcp://127.0.0.1:0", RMANAGER_PORT, name="a") as server,
        ServerChannel.bind("tcp://127.0.0.1:0", GMANAGER_PORT, name="gmanager") as gmanager,
        ClientChannel.connect(server.address, CLIENT_CONNECTION) as client,
        task_scope() as tasks,
        asyncio.timeout(DEADLINE_S),
    ):
        envelopes = EnvelopeFactory("a")
        gmanagers = GManagerConnections((gmanager.address,), envelopes, tasks)
        never: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        worker: Any = SimpleNamespace(send=lambda body, cause: None, recv=lambda: never, watch=lambda tasks: None)
        actor = InstanceActor(
            build(InstanceConfig, {"instance_id": "a", "model": str(model)}),
            RManager(settings, NoText, Random(0)), make_member("a"), "compat", server, gmanagers, worker, tokenizer,
            Trace(None, "a"), envelopes, tasks,
        )  # fmt: skip
        actor.start()
        heard = 0

        async def listen() -> None:
            nonlocal heard
            while True:
                _route, envelope = await gmanager.recv()
                heard += isinstance(envelope.body, tg.Heartbeat)

        tasks.create_task(listen())
        # Of the vocabulary that the core believes in it has no tokens, so that no more is done with them.
        text = ("The keys and values. " * (TEXT_BYTES // 20))[:TEXT_BYTES]
        await client.wait_connected()
        client.send(EnvelopeFactory("client").wrap(tr.Submit(request_id="r", prompt=text, params=SamplingParams())))
        await asyncio.sleep(HEARTBEAT_S)
        before, began_s = heard, asyncio.get_running_loop().time()
        ended = (await client.recv()).body
        took_s = asyncio.get_running_loop().time() - began_s
        actor.close()
        gmanagers.close()
        assert isinstance(ended, RequestEnded) and "token ids must be in [0, 9)" in ended.reason
        assert heard - before > 0.2 * took_s / HEARTBEAT_S > 2, f"{heard - before} heartbeats in {took_s:.2f} s"
