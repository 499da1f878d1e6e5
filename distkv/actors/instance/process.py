"""The instance process: starts the engine worker, then runs the rManager until it has to stop or cannot go on."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import structlog

from distkv.actors.instance.actor import InstanceActor
from distkv.actors.instance.connections import GManagerConnections
from distkv.actors.instance.starting_responder import StartingResponder
from distkv.actors.instance.worker_group import WorkerGroup
from distkv.actors.task_scope import callback_errors, every, first_of, task_scope
from distkv.actors.trace import Trace
from distkv.config import InstanceConfig, is_loopback
from distkv.control.request.answer.output import MakeDecoder, NoText
from distkv.control.rmanager.state import RManagerSettings
from distkv.control.rmanager.state_machine import RManager
from distkv.errors import ConfigError
from distkv.text.tokenizer import Tokenizer
from distkv.text.tokenizer_conversion import convert_tokenizer
from distkv.wire.address import join_host_port
from distkv.wire.channel import ServerChannel
from distkv.wire.envelope_factory import EnvelopeFactory
from distkv.wire.inboxes import RMANAGER_PORT
from distkv.wire.messages.common import Member
from distkv.wire.messages.from_worker import WorkerReady
from distkv.wire.messages.profile import Profile
from distkv.wire.profile_file import load_profile
from distkv.wire.reachability import is_elsewhere, problems_at

JOIN_PATIENCE_S = 5.0


async def run(config: InstanceConfig, ready: Callable[[dict[str, Any]], None], stop: asyncio.Event) -> int:
    """Serve until `stop` (then drain) or a fatal error; returns the exit code. `config` has no "auto" left.

    The worker ends with this process and this process ends with the worker.
    """
    incarnation = time.time_ns()
    profile = profile_of(config)
    envelopes = EnvelopeFactory(config.instance_id)
    address = f"tcp://{join_host_port(config.host, config.port)}"
    async with contextlib.AsyncExitStack() as stack:
        server = await stack.enter_async_context(
            ServerChannel.bind(address, RMANAGER_PORT, name=config.instance_id, insecure=config.insecure)
        )
        trace = stack.enter_context(Trace(config.trace_file, config.instance_id))
        worker = await stack.enter_async_context(await WorkerGroup.start(config, incarnation, envelopes))
        tasks = await stack.enter_async_context(task_scope())
        tasks.create_task(callback_errors(), name="callback errors")
        tasks.create_task(_warn_if_out_of_reach(config), name="look at the own addresses")
        gmanagers = stack.enter_context(contextlib.closing(GManagerConnections(config.gmanager, envelopes, tasks)))
        loading = tasks.create_task(
            asyncio.to_thread(Tokenizer.from_dir, config.engine.model, convert_tokenizer), name="load tokenizer"
        )
        responder = StartingResponder(config, incarnation, server, gmanagers, envelopes, worker.pid)
        loaded = await _load(worker, responder, config.control.heartbeat_s, stop)
        if loaded is None:
            return 0
        tokenizer = await loading
        settings = settings_of(config, incarnation, loaded, profile)
        vocabulary = "" if tokenizer is None else tokenizer.vocabulary
        member = member_of(settings, server.address, worker.pid, loaded, vocabulary)
        core = RManager(settings, _decoders(tokenizer), trace.entropy)
        trace.rmanager_begins(settings)
        actor = InstanceActor(
            config, core, member, loaded.compat, server, gmanagers, worker, tokenizer, trace, envelopes, tasks
        )
        stack.callback(actor.close)
        actor.start()
        tasks.create_task(_drain(actor, stop), name="drain")
        facts = {"address": server.address, "pid": os.getpid()}
        tasks.create_task(_announce(actor, config.gmanager, lambda: ready(facts)), name="announce")
        return await actor.ended()


async def _load(
    worker: WorkerGroup, responder: StartingResponder, heartbeat_s: float, stop: asyncio.Event
) -> WorkerReady | None:
    """Wait for the worker while answering that we are starting; None if `stop` came first."""
    loaded: list[WorkerReady] = []

    async def wait_ready() -> None:
        loaded.append(await worker.wait_ready())

    await first_of(wait_ready(), responder.serve(), every(heartbeat_s, responder.announce), stop.wait())
    return loaded[0] if loaded else None


async def _announce(actor: InstanceActor, gmanagers: Sequence[str], ready: Callable[[], None]) -> None:
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(actor.joined.wait(), JOIN_PATIENCE_S)
    if actor.is_refused:
        await actor.joined.wait()
    if not actor.joined.is_set():
        problems = await problems_at(gmanagers)
        structlog.get_logger().warning("no gManager answers; serving without one", gmanagers=problems)
    ready()


async def _warn_if_out_of_reach(config: InstanceConfig) -> None:
    """Say so where this instance listens for its own machine only, and a gManager is on another one."""
    hosts = {config.host, config.data.data_host or config.host}
    loopback = sorted(host for host in hosts if is_loopback(host))
    if not loopback:
        return
    far = [address for address in config.gmanager if await asyncio.to_thread(is_elsewhere, address)]
    if far:
        structlog.get_logger().warning("other machines cannot reach this instance", hosts=loopback, gmanagers=far)


async def _drain(actor: InstanceActor, stop: asyncio.Event) -> None:
    await stop.wait()
    actor.drain()


def profile_of(config: InstanceConfig) -> Profile | None:
    """What was measured of this hardware, if the user says where that is. Raises ConfigError."""
    return None if config.profile is None else load_profile(Path(config.profile).expanduser())


def settings_of(
    config: InstanceConfig, incarnation: int, loaded: WorkerReady, profile: Profile | None = None
) -> RManagerSettings:
    """What the rManager decides by. Requests may be as long as the model was made for, unless the user says otherwise;
    longer ones are logged as a warning. Raises ConfigError for a profile of another model."""
    if profile is not None and (differing := profile.differences(loaded.serves)):
        raise ConfigError(
            "profile", f"{config.profile} was measured of {differing}", "measure this one with distkv profile"
        )
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
        serves=loaded.serves,
        computes=loaded.computes,
        profile=profile,
        **msgspec.structs.asdict(control) | {"max_model_len": control.max_model_len or loaded.max_positions},
    )


def member_of(
    settings: RManagerSettings,
    address: str,
    worker_pid: int,
    loaded: WorkerReady,
    vocabulary: str = "",
) -> Member:
    """The instance as it presents itself."""
    return Member(
        instance_id=settings.instance_id,
        incarnation=settings.incarnation,
        address=address,
        state="ready",
        pid=os.getpid(),
        worker_pid=worker_pid,
        block_tokens=loaded.block_tokens,
        total_blocks=loaded.num_slots,
        lendable_blocks=settings.lendable_blocks,
        free_blocks=loaded.num_slots,
        data=loaded.data,
        heartbeat_s=settings.heartbeat_s,
        max_model_len=settings.max_model_len or 0,
        vocabulary=vocabulary,
    )


def _decoders(tokenizer: Tokenizer | None) -> MakeDecoder:
    return tokenizer.stream if tokenizer is not None else NoText
