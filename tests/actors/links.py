"""Workers' data plane within one process: pools, listeners and the threads that serve, without engine or rManager."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import secrets
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from distkv.actors.worker.links.link_server import LinkServer
from distkv.actors.worker.links.peer_links import PeerLinks
from distkv.actors.worker.transfers import Transfers
from distkv.engine.attention.serving import AttendServer
from distkv.engine.attention.spans import SpanRegistry
from distkv.engine.device.cpu import CpuDevice
from distkv.engine.device.pool import KvPool, slot_bytes
from distkv.engine.model.config import ModelConfig
from distkv.errors import LinkClosed
from distkv.wire.envelope_factory import EnvelopeFactory
from distkv.wire.links import LinkIdentity, Pool, PoolMemory, Registrations, listen
from distkv.wire.messages.common import Epoch, Member, SpanRef
from distkv.wire.messages.counters import Counters
from distkv.wire.messages.to_worker import Checksum, Pull, Shutdown
from distkv.wire.worker_pipe import WorkerEnd, WorkerPipe
from tests.checkpoints import variant

BLOCK, NUM_SLOTS = 4, 8
DEADLINE_S = 30.0
_names = itertools.count()


def span(span_id: str, counter: int = 1) -> SpanRef:
    return SpanRef(span_id=span_id, epoch=Epoch(1, counter))


def identity(name: str, incarnation: int = 1) -> LinkIdentity:
    return LinkIdentity(instance_id=name, incarnation=incarnation, compat="same")


def peer_links(name: str, own_slot_bytes: int) -> PeerLinks:
    return PeerLinks(identity(name), own_slot_bytes, DEADLINE_S, "auto")


def model_config(path: Path) -> ModelConfig:
    return ModelConfig.from_dir(variant(path, "llama", text_for_tokenizer=None))


class Worker:
    """A worker's memory and serving side under a name."""

    def __init__(
        self,
        name: str,
        config: ModelConfig,
        incarnation: int = 1,
        *,
        address: str | None = None,
        registered: Registrations | None = None,
    ) -> None:
        """address: to listen at; within this process by default. registered: what peers may attach to."""
        self.name, self.config, self.incarnation = name, config, incarnation
        self.memory = PoolMemory(slot_bytes(config, BLOCK, torch.float32), NUM_SLOTS)
        self.registry = SpanRegistry()
        self.pool = KvPool(config, NUM_SLOTS, BLOCK, torch.float32, self.memory.view)
        for layer in range(config.num_layers):
            for half in (self.pool.layer(layer).k, self.pool.layer(layer).v):
                half.normal_(generator=torch.Generator().manual_seed(layer))
        server = AttendServer(self.pool, self.registry, config, torch.float32, CpuDevice())
        address = address or f"inproc://actors-{os.getpid()}-{next(_names)}"
        self.listener: Any = listen(address, identity(name, incarnation), self.memory)
        self.serving = LinkServer(self.listener, server, self.memory, registered)

    @property
    def member(self) -> Member:
        return Member(
            instance_id=self.name,
            incarnation=self.incarnation,
            address="",
            state="ready",
            data=self.listener.endpoint,
        )

    def fill(self) -> None:
        self.memory.view[:] = secrets.token_bytes(len(self.memory.view))

    def slot(self, number: int) -> bytes:
        size = self.memory.slot_bytes
        return bytes(self.memory.view[number * size : (number + 1) * size])

    @contextlib.contextmanager
    def serves(self) -> Iterator[None]:
        """Accepts links meanwhile, each served in a thread of its own."""

        def run() -> None:
            with contextlib.suppress(LinkClosed):
                self.serving.run()

        thread = threading.Thread(target=run, name="listener")
        thread.start()
        try:
            yield
        finally:
            self.listener.close()
            thread.join(DEADLINE_S)
            assert not thread.is_alive()

    def close(self) -> None:
        self.listener.close()
        del self.pool, self.serving
        self.memory.close()


def close_links(links: PeerLinks) -> None:
    """No member is left, so every link ends."""
    links.update((), tuple(links._members))


async def transferred(links: PeerLinks, own: Pool, *commands: Checksum | Pull) -> tuple[list[object], Counters]:
    """What the transfer thread of a worker with this pool answers to them, one after the other."""
    envelopes = EnvelopeFactory("a")
    found: list[object] = []
    async with WorkerPipe() as pipe:
        transfers = Transfers(WorkerEnd(pipe.worker_end), links, SpanRegistry(), own, DEADLINE_S)
        thread = asyncio.create_task(asyncio.to_thread(transfers.run))
        for command in commands:
            transfers.put(envelopes.wrap(command))
            async with asyncio.timeout(DEADLINE_S):
                found.append((await pipe.recv()).body)
        transfers.put(envelopes.wrap(Shutdown()))
        with pytest.raises(AssertionError, match="Shutdown is no transfer"):
            await thread
    return found, transfers.counters
