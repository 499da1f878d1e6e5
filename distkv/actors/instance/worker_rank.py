"""One process of the engine worker as its rManager sees it: a child and the pipe to it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys

import msgspec
import structlog

from distkv.actors.task_scope import task_scope
from distkv.actors.worker.spec import SPEC_VARIABLE, WorkerSpec
from distkv.config import InstanceConfig
from distkv.endings import describe_exit, oom_kills
from distkv.errors import ClusterError, StartupFailed
from distkv.wire.address import join_host_port
from distkv.wire.envelope_factory import EnvelopeFactory
from distkv.wire.messages.envelope import Envelope, FromWorker, ToWorker
from distkv.wire.messages.from_worker import WorkerFailed, WorkerReady
from distkv.wire.messages.to_worker import Shutdown, StatsQuery
from distkv.wire.worker_pipe import WorkerPipe

STOP_S = 5.0
KILL_S = 5.0
"""A killed process ends at once, unless a driver holds it."""
PROBE_S = 1.0
MAX_UNANSWERED = 10
LAST_WORDS_S = 0.5
"""For what a worker said right before it ended."""


class WorkerGone(ClusterError):
    """A process of the engine worker ended or hangs: the instance ends with it, and a supervisor starts a new one."""


class WorkerRank:
    """Owns the child and the pipe. Use `start`, and always `stop`."""

    def __init__(self, pipe: WorkerPipe, child: asyncio.subprocess.Process, envelopes: EnvelopeFactory) -> None:
        self._pipe = pipe
        self._child = child
        self._envelopes = envelopes
        self._unanswered = 0
        self._is_ready = False
        self._oom_kills = oom_kills()

    @classmethod
    async def start(cls, config: InstanceConfig, incarnation: int, envelopes: EnvelopeFactory) -> WorkerRank:
        """Spawn the process; it loads in the background, see `wait_ready`. Raises StartupFailed where the system does
        not let it begin."""
        pipe: WorkerPipe | None = None
        try:
            pipe = WorkerPipe()
            end = pipe.worker_end.fileno()
            child = await asyncio.create_subprocess_exec(
                sys.executable,
                "-P",  # a folder `distkv` where we were started is not this package
                "-m",
                "distkv.actors.worker.start",
                env=_environment(_spec(config, incarnation, end)),
                stdin=asyncio.subprocess.DEVNULL,
                pass_fds=(end,),
            )
        except BaseException as error:
            if pipe is not None:
                pipe.close()
            if not isinstance(error, OSError):
                raise
            why = f"{sys.executable} cannot be started: {error.strerror or error}"
            raise StartupFailed("engine worker", why) from None
        pipe.worker_end.close()
        return cls(pipe, child, envelopes)

    @property
    def pid(self) -> int:
        return self._child.pid

    async def wait_ready(self) -> WorkerReady:
        """Its first message. Raises StartupFailed when it fails or dies before."""
        async with task_scope() as tasks:
            tasks.create_task(self._die_unready(), name="worker dies")
            first = (await self._pipe.recv()).body
        match first:
            case WorkerReady():
                self._is_ready = True
                return first
            case WorkerFailed(reason=reason):
                raise StartupFailed("engine worker", reason)
            case _:
                raise StartupFailed("engine worker", f"its first message is {type(first).__name__}")

    def send(self, body: ToWorker, cause: str) -> None:
        """On the ordered channel."""
        self._pipe.send(self._envelopes.wrap(body, cause))

    async def recv(self) -> Envelope[FromWorker]:
        """The next message of the process."""
        envelope = await self._pipe.recv()
        self._unanswered = 0
        return envelope

    async def watch(self) -> None:
        """Raise WorkerGone when the process ends."""
        code = await self._child.wait()
        raise WorkerGone(f"the engine worker is gone: {describe_exit(code, self._oom_kills)}")

    async def probe(self) -> None:
        """Raise WorkerGone when the process is there and stays silent for too long: what it lends would never come
        back, what it runs never end.

        Counted in turns of our own, so that nobody is blamed when this process was stopped or the machine slept.
        """
        while self._unanswered < MAX_UNANSWERED:
            await asyncio.sleep(PROBE_S)
            self._unanswered += 1
            self.send(StatsQuery(query_id=0), "")
        raise WorkerGone(f"the engine worker hangs: it did not answer for {MAX_UNANSWERED * PROBE_S:g} s")

    async def stop(self) -> None:
        """Ask it to exit, kill it if it does not, and leave it behind if that does not end it either."""
        with contextlib.suppress(ProcessLookupError):
            if not self._is_ready:
                self._child.kill()  # it still loads, and hears nothing
            elif self._child.returncode is None:
                self.send(Shutdown(), "")
                try:
                    await asyncio.wait_for(self._child.wait(), STOP_S)
                except TimeoutError:
                    self._child.kill()
        try:
            await asyncio.wait_for(self._child.wait(), KILL_S)
        except TimeoutError:
            structlog.get_logger().error("the engine worker does not end", pid=self.pid)
        self._pipe.close()

    async def _die_unready(self) -> None:
        code = await self._child.wait()
        await asyncio.sleep(LAST_WORDS_S)
        raise StartupFailed("engine worker", describe_exit(code, self._oom_kills), exit_code=code)


def _spec(config: InstanceConfig, incarnation: int, pipe_fd: int) -> WorkerSpec:
    return WorkerSpec(
        pipe_fd=pipe_fd,
        instance_id=config.instance_id,
        incarnation=incarnation,
        data_address=join_host_port(config.data.data_host or config.host, config.data.data_port),
        insecure=config.insecure,
        engine=config.engine,
        data=config.data,
        logging=config.logging,
        profile=config.profile,
    )


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
