"""The engine worker process: threads around the engine. It computes and moves bytes; what, the rManager says.

    main thread      reads commands; grants, revokes, member lists, counters, and Checksums and Pulls of few rBlocks
                     that wait for nobody are done on the spot
    step thread      Steps, in order
    grammar thread   Compiles, in order
    transfer thread  other Checksums, in order
    source threads   other Pulls, one thread for each peer that is pulled from, many pulls at once
    fetch threads    read keys for the step thread, one for each fetch over a socket
    link threads     one for each attempt to link to a creditor
    listener thread  accepts tensor links; each has a thread of its own that serves its peer

When any of them fails the process says why and exits non-zero; when the rManager is gone it exits at once.
"""

from __future__ import annotations

import os
import queue
import socket
import sys
import threading
import time
from collections.abc import Callable
from typing import assert_never

import msgspec
import structlog

from distkv.actors.worker import device_setup
from distkv.actors.worker.grammars import Grammars
from distkv.actors.worker.links.fetch_model import cost_models_of
from distkv.actors.worker.links.link_server import LinkServer
from distkv.actors.worker.links.mailboxes import Mailboxes
from distkv.actors.worker.links.mapped_pools import MappedPools, mapped_pools_of
from distkv.actors.worker.links.peer_links import PeerLinks
from distkv.actors.worker.pool_size import kv_dtype, make_pool
from distkv.actors.worker.spec import SPEC_VARIABLE, WorkerSpec
from distkv.actors.worker.steps import Steps
from distkv.actors.worker.transfers import Transfers
from distkv.engine.attention.bodies import out_dtype_of
from distkv.engine.attention.serving import AttendServer
from distkv.engine.attention.spans import SpanRegistry
from distkv.engine.device.compat import Compat
from distkv.engine.device.device import Device
from distkv.engine.device.pool import KvPool, slot_bytes
from distkv.engine.model.decoder import Model
from distkv.engine.model.weights import fingerprint
from distkv.engine.step.runner import StepRunner
from distkv.engine.step.warm_up import warm_up
from distkv.errors import CheckpointError, ConfigError, LinkClosed
from distkv.log.lines import configure
from distkv.wire.links import LinkIdentity, listen, register
from distkv.wire.messages import from_worker as fw
from distkv.wire.messages import to_worker as tw
from distkv.wire.messages.counters import Counters, total
from distkv.wire.messages.envelope import Envelope, ToWorker
from distkv.wire.worker_pipe import WorkerEnd

POLL_S = 1.0


def main() -> int:
    """Run until the rManager says Shutdown or is gone; returns the exit code."""
    spec = msgspec.json.decode(os.environ.pop(SPEC_VARIABLE), type=WorkerSpec)
    configure("worker", spec.instance_id, spec.logging.log_level, spec.logging.log_json)
    # Threads here hold the interpreter only between tensor operations; short turns keep a peer's answer from waiting.
    sys.setswitchinterval(0.0005)
    with WorkerEnd(socket.socket(fileno=spec.pipe_fd)) as pipe:
        try:
            Worker(spec, pipe, device_setup.set_up(spec.engine)).run()
        except LinkClosed:
            return 1
        except (CheckpointError, ConfigError) as error:  # the user's to mend: where we found it says nothing
            structlog.get_logger().error("worker failed", reason=str(error))
            pipe.send(fw.WorkerFailed(reason=str(error)))
            return 1
        except Exception as error:
            structlog.get_logger().error("worker failed", reason=f"{type(error).__name__}: {error}", exc_info=True)
            pipe.send(fw.WorkerFailed(reason=str(error) or type(error).__name__))
            return 1
    return 0


class Worker:
    """Owns the model, the pool and the threads."""

    def __init__(self, spec: WorkerSpec, pipe: WorkerEnd, device: Device) -> None:
        """Load the model and create the pool. Raises CheckpointError, ConfigError."""
        self._spec = spec
        engine, data = spec.engine, spec.data
        self._pipe = pipe
        self._computes = str(device.place)
        self._log = structlog.get_logger()
        started = time.monotonic()
        with device.stream():
            self._model = Model.load(engine.model, engine.dtype, device)
            device.synchronize()
            config, dtype, layout = self._model.config, self._model.dtype, device.backend.layout
            kv = kv_dtype(engine, dtype, device)
            self._memory, memory = make_pool(
                engine, slot_bytes(config, engine.block_size, kv), device, data.tensor_transport
            )
        self._pool = KvPool(config, self._memory.num_slots, engine.block_size, kv, memory, layout)
        self._compat = Compat.of(config, fingerprint(engine.model), dtype, engine.block_size, layout, kv)
        self._registry = SpanRegistry()
        self._server = AttendServer(self._pool, self._registry, config, dtype, device)
        self._identity = LinkIdentity(
            instance_id=spec.instance_id, incarnation=spec.incarnation, compat=self._compat.hash
        )
        models = cost_models_of(spec.profile, engine.block_size)
        self._registered = register(self._memory, data.tensor_transport)
        if mapped := mapped_pools_of(self._memory, device, data.tensor_transport):
            self._registered[MappedPools.name] = mapped
        self._mailboxes = None
        if device.is_async:
            self._mailboxes = Mailboxes(self._server, config, dtype, device)
            self._registered[Mailboxes.name] = self._mailboxes
        self._peers = PeerLinks(
            self._identity,
            self._memory.slot_bytes,
            data.attend_timeout_s,
            data.tensor_transport,
            models,
            self._registered,
            out_dtype_of(self._model.dtype),
            self._mailboxes,
        )
        self._runner = StepRunner(
            self._model, self._pool, self._peers, engine.microbatches, data.prefill_kv, data.fetch_bytes
        )
        warm_up(self._runner, self._model, self._pool)
        self._steps = Steps(pipe, self._runner, self._server.served_s, self._counters)
        self._failure: queue.SimpleQueue[BaseException] = queue.SimpleQueue()
        self._log.info(
            "loaded", model=config.model_type, dtype=str(dtype), kv_dtype=str(kv),
            linears=device.backend.linear_name(dtype), device=str(device.place), blocks=self._pool.num_slots,
            pool_bytes=self._pool.num_slots * self._pool.slot_bytes, seconds=round(time.monotonic() - started, 3),
        )  # fmt: skip

    def run(self) -> None:
        """Serve until Shutdown. Raises LinkClosed when the rManager is gone, and whatever a thread failed of."""
        spec, data, config = self._spec, self._spec.data, self._model.config
        registered = self._registered
        listener = listen(
            spec.data_address, self._identity, self._memory, insecure=spec.insecure, registered=registered
        )
        self._serving = LinkServer(listener, self._server, self._memory, registered, self._mailboxes)
        self._transfers = Transfers(self._pipe, self._peers, self._registry, self._memory, data.attend_timeout_s)
        self._grammars = Grammars(self._pipe, spec.engine.model, self._runner.constraints, config.vocab_size)
        self._grammars.prepare()
        self._start("listener", self._serving.run)
        self._start("transfers", self._transfers.run)
        self._start("steps", self._steps.run)
        self._start("grammars", self._grammars.run)
        self._pipe.send(
            fw.WorkerReady(
                pid=os.getpid(),
                compat=self._compat.hash,
                data=listener.endpoint,
                block_tokens=spec.engine.block_size,
                num_slots=self._pool.num_slots,
                eos_token_ids=config.eos_token_ids,
                vocab_size=config.vocab_size,
                max_positions=config.max_model_len,
                serves=self._compat.words,
                computes=self._computes,
            )
        )
        while self._failure.empty():
            envelope = self._pipe.recv(POLL_S)
            if envelope is not None and not self._execute(envelope):
                return
        raise self._failure.get()

    def _execute(self, envelope: Envelope[ToWorker]) -> bool:
        """Carry out one command, or hand it to its thread; False for Shutdown."""
        command = envelope.body
        match command:
            case tw.Step() | tw.Forget():
                self._steps.put(command, envelope.id)
            case tw.Compile():
                self._grammars.put(command, envelope.id)
            case tw.Checksum() | tw.Pull() | tw.Link():
                self._transfers.put(envelope)
            case tw.Grant():
                self._registry.grant(command.span, command.slots)
            case tw.Revoke():
                revoked = fw.Revoked(span=command.span, positions=command.positions)
                self._registry.revoke(command.span, self._transfers.reporter(revoked, envelope.id), command.positions)
            case tw.Peers():
                self._peers.update(command.members, command.gone)
            case tw.StatsQuery():
                stats = fw.WorkerStats(query_id=command.query_id, counters=self._counters())
                self._pipe.send(stats, envelope.id)
            case tw.Shutdown():
                return False
            case _:
                assert_never(command)
        return True

    def _counters(self) -> Counters:
        parts = (self._steps, self._runner, self._peers, self._server, self._serving, self._transfers)
        return total(*(part.counters for part in parts))

    def _start(self, name: str, target: Callable[[], None]) -> None:
        def guarded() -> None:
            try:
                target()
            except BaseException as error:
                self._log.error("thread failed", thread=name, reason=str(error), exc_info=True)
                self._failure.put(error)

        threading.Thread(target=guarded, name=name, daemon=True).start()
