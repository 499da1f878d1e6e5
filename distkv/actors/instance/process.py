"""The instance process: starts the engine worker, then runs the rManager until it is told to stop or cannot go on."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import Callable
from random import SystemRandom
from typing import Any

import msgspec
import structlog

from distkv.actors.instance.actor import InstanceActor
from distkv.actors.instance.outbound import Outbounds
from distkv.actors.instance.starting import StartingResponder
from distkv.actors.instance.trace import Trace
from distkv.actors.instance.worker_child import WorkerProcess
from distkv.actors.ticking import every, first_of
from distkv.config import InstanceConfig
from distkv.control.request.output import Decoder, NoText
from distkv.control.rmanager.state import RManagerSettings
from distkv.control.rmanager.state_machine import RManager
from distkv.text.tokenizer import Tokenizer
from distkv.text.tokenizer_conversion import convert_tokenizer
from distkv.wire.address import join_host_port
from distkv.wire.channel import ServerChannel
from distkv.wire.envelope_factory import EnvelopeFactory
from distkv.wire.messages.common import Member
from distkv.wire.messages.from_worker import WorkerReady

TICK_S = 0.05
JOIN_PATIENCE_S = 5.0


async def run(config: InstanceConfig, ready: Callable[[dict[str, Any]], None], stop: asyncio.Event) -> int:
    """Serve until `stop` (then drain) or a fatal error; returns the exit code. `config` has no "auto" left.

    The worker ends with this process and this process ends with the worker (PROTOCOL, "Failure promises").
    """
    incarnation = time.time_ns()
    async with contextlib.AsyncExitStack() as stack:
        server = await stack.enter_async_context(
            ServerChannel.bind(
                f"tcp://{join_host_port(config.host, config.port)}", name=config.instance_id, insecure=config.insecure
            )
        )
        trace = stack.enter_context(Trace(config.trace_file, config.instance_id))
        worker = await WorkerProcess.start(config, incarnation)
        stack.push_async_callback(worker.stop)
        responder = StartingResponder(config, incarnation, server, worker.pid)
        stack.push_async_callback(responder.close)
        tokenizer = asyncio.ensure_future(asyncio.to_thread(Tokenizer.from_dir, config.engine.model, convert_tokenizer))
        stack.push_async_callback(_settled, tokenizer)
        loaded = await _load(worker, responder, stop)
        if loaded is None:
            return 0
        settings = _settings(config, incarnation, loaded)
        member = _member(config, settings, server.address, worker.pid, loaded)
        core = RManager(settings, _decoders(await tokenizer), SystemRandom())
        actor = InstanceActor(config, core, member, loaded.compat, server, worker, await tokenizer, trace)
        await responder.close()
        outbounds = Outbounds(
            config.gmanager,
            EnvelopeFactory(config.instance_id),
            on_gmanager_message=actor.on_gmanager_message,
            on_peer_message=actor.on_peer_message,
            on_peer_lost=actor.on_peer_lost,
            on_gmanager=actor.introduce,
        )
        stack.push_async_callback(outbounds.close)
        actor.start(outbounds)
        return await _serve(actor, lambda: ready({"address": server.address, "pid": os.getpid()}), stop)


async def _serve(actor: InstanceActor, ready: Callable[[], None], stop: asyncio.Event) -> int:
    async def announce() -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(actor.joined.wait(), JOIN_PATIENCE_S)
        if not actor.joined.is_set():
            structlog.get_logger().warning("no gManager answers; serving without one")
        ready()
        await asyncio.Event().wait()

    async def drain() -> None:
        await stop.wait()
        actor.drain()
        await asyncio.Event().wait()

    await first_of(
        asyncio.ensure_future(actor.read_server()),
        asyncio.ensure_future(actor.read_worker()),
        asyncio.ensure_future(actor.watch_worker()),
        asyncio.ensure_future(actor.probe_worker()),
        asyncio.ensure_future(every(TICK_S, actor.tick)),
        asyncio.ensure_future(announce()),
        asyncio.ensure_future(drain()),
        asyncio.ensure_future(actor.ended()),
    )
    return await actor.ended()


async def _load(worker: WorkerProcess, responder: StartingResponder, stop: asyncio.Event) -> WorkerReady | None:
    """Wait for the worker while answering that we are starting; None if told to stop meanwhile."""
    waiting = asyncio.ensure_future(worker.wait_ready())
    await first_of(waiting, *responder.tasks(), asyncio.ensure_future(stop.wait()))
    return worker.ready


def _settings(config: InstanceConfig, incarnation: int, loaded: WorkerReady) -> RManagerSettings:
    control = config.control
    if control.max_model_len is not None and control.max_model_len > loaded.max_positions:
        structlog.get_logger().warning(
            "max_model_len is beyond what the model was made for",
            max_model_len=control.max_model_len,
            max_positions=loaded.max_positions,
        )
    return RManagerSettings(
        instance_id=config.instance_id,
        incarnation=incarnation,
        block_tokens=loaded.block_tokens,
        num_blocks=loaded.num_slots,
        vocab_size=loaded.vocab_size,
        eos_token_ids=frozenset(loaded.eos_token_ids),
        **msgspec.structs.asdict(control),
    )


def _member(
    config: InstanceConfig, settings: RManagerSettings, address: str, worker_pid: int, loaded: WorkerReady
) -> Member:
    return Member(
        instance_id=settings.instance_id,
        incarnation=settings.incarnation,
        address=address,
        role=config.role,
        state="ready",
        pid=os.getpid(),
        worker_pid=worker_pid,
        block_tokens=loaded.block_tokens,
        total_blocks=loaded.num_slots,
        lendable_blocks=settings.lendable_blocks,
        free_blocks=loaded.num_slots,
        data=loaded.data,
    )


def _decoders(tokenizer: Tokenizer | None) -> Callable[[], Decoder]:
    return tokenizer.stream if tokenizer is not None else NoText


async def _settled(task: asyncio.Future[Any]) -> None:
    await asyncio.gather(task, return_exceptions=True)
