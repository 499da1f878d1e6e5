"""The engine worker as its rManager sees it: a child process and the pipe to it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys

import msgspec

from distkv.actors.worker.spec import SPEC_VARIABLE, WorkerSpec
from distkv.config import InstanceConfig
from distkv.errors import StartupFailed
from distkv.wire.address import join_host_port
from distkv.wire.envelope_factory import EnvelopeFactory
from distkv.wire.messages.envelope import Envelope, ToWorker
from distkv.wire.messages.from_worker import WorkerFailed, WorkerReady
from distkv.wire.messages.to_worker import Shutdown, StatsQuery
from distkv.wire.worker_pipe import WorkerPipe

STOP_S = 5.0
PROBE_S = 1.0
MAX_UNANSWERED = 10
LAST_WORDS_S = 0.5
"""For what a worker said right before it ended."""


class WorkerProcess:
    """Owns the child and the pipe. Use `start`, and always `stop`."""

    def __init__(self, pipe: WorkerPipe, child: asyncio.subprocess.Process, envelopes: EnvelopeFactory) -> None:
        self._pipe = pipe
        self._child = child
        self._envelopes = envelopes
        self._unanswered = 0
        self.ready: WorkerReady | None = None

    @classmethod
    async def start(cls, config: InstanceConfig, incarnation: int) -> WorkerProcess:
        """Spawn the worker; it loads in the background, see `wait_ready`."""
        pipe = WorkerPipe()
        try:
            spec = WorkerSpec(
                pipe_address=pipe.address,
                instance_id=config.instance_id,
                incarnation=incarnation,
                data_address=join_host_port(config.data.data_host or config.host, config.data.data_port),
                insecure=config.insecure,
                engine=config.engine,
                data=config.data,
                logging=config.logging,
            )
            child = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "distkv.actors.worker.process",
                env=_environment(spec),
                stdin=asyncio.subprocess.DEVNULL,
            )
        except BaseException:
            pipe.abort()
            raise
        return cls(pipe, child, EnvelopeFactory(config.instance_id))

    @property
    def pid(self) -> int:
        return self._child.pid

    async def wait_ready(self) -> WorkerReady:
        """The worker's first message. Raises StartupFailed when it fails or dies before."""
        received = asyncio.ensure_future(self._pipe.recv())
        ended = asyncio.ensure_future(self._child.wait())
        try:
            await asyncio.wait((received, ended), return_when=asyncio.FIRST_COMPLETED)
            if not received.done():
                await asyncio.wait((received,), timeout=LAST_WORDS_S)
            if received.done():
                body = received.result().body
                if isinstance(body, WorkerReady):
                    self.ready = body
                    return body
                reason = body.reason if isinstance(body, WorkerFailed) else f"it said {type(body).__name__}"
                raise StartupFailed("engine worker", reason)
            raise StartupFailed("engine worker", _how_it_ended(ended.result()))
        finally:
            for task in (received, ended):
                task.cancel()
            await asyncio.gather(received, ended, return_exceptions=True)

    def send(self, body: ToWorker, cause: str) -> None:
        """On the ordered channel."""
        self._pipe.send(self._envelopes.wrap(body, cause))

    async def recv(self) -> Envelope:
        """The next message of the worker."""
        envelope = await self._pipe.recv()
        self._unanswered = 0
        return envelope

    async def ended(self) -> str:
        """Return, when the child has ended, how."""
        return _how_it_ended(await self._child.wait())

    async def hung(self) -> str:
        """Return, when the child is there and says nothing for too long, for how long.

        Counted in turns of our own, so that nobody is blamed when this process was stopped or the machine slept.
        """
        while self._unanswered < MAX_UNANSWERED:
            await asyncio.sleep(PROBE_S)
            self._unanswered += 1
            self.send(StatsQuery(query_id=0), "")
        return f"it did not answer for {MAX_UNANSWERED * PROBE_S:g} s"

    async def stop(self) -> None:
        """Ask it to exit, and kill it if it does not."""
        with contextlib.suppress(ProcessLookupError):
            if self.ready is None:
                self._child.kill()  # it still loads, and hears nothing
            elif self._child.returncode is None:
                self.send(Shutdown(), "")
                try:
                    await asyncio.wait_for(self._child.wait(), STOP_S)
                except TimeoutError:
                    self._child.kill()
        await self._child.wait()
        self._pipe.abort()


def _environment(spec: WorkerSpec) -> dict[str, str]:
    env = {
        **os.environ,
        SPEC_VARIABLE: msgspec.json.encode(spec).decode(),
        "OMP_NUM_THREADS": str(spec.engine.threads or 1),
    }
    if "GOMP_SPINCOUNT" not in env:
        # torch's threads would spin for milliseconds after each operation, on cores where others have work.
        env.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    # Weights in huge pages: reading them then leaves room in the tables of addresses for everything else.
    env.setdefault("THP_MEM_ALLOC_ENABLE", "1")
    # What kernels were written for; Triton 3.9 warns that its default will change.
    env.setdefault("TRITON_DEFAULT_FP_FUSION", "1")
    return env


def _how_it_ended(code: int) -> str:
    return f"it was ended by signal {-code}" if code < 0 else f"it exited with code {code}"
