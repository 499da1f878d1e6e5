"""Drives real clusters: requests under way, awaited conditions, and what must hold whenever somebody looks."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from distkv import AsyncClient, Client, LocalCluster, RequestFailed, SamplingParams
from distkv.client.local.child import wait_ready
from distkv.client.local.cluster import InstanceHandle
from distkv.types import Chunk
from distkv.wire.messages.to_client import Status
from tests.conftest import LASTING

BLOCK_TOKENS = 16
POLL_S = 0.02
STEPS_S = 0.01
"""How long a slowed worker goes on at a time."""
SETTLED_S = 20.0
"""Some leases: blocks must come back however late everybody is. How soon they do, `SimCluster.settle` shows."""

Prompt = str | list[int]


async def eventually(
    condition: Callable[[], Awaitable[Any]] | Callable[[], Any], timeout_s: float, what: str | Callable[[], str]
) -> Any:
    """The condition's first true value. Fails after `timeout_s` saying `what` did not happen."""
    deadline = time.monotonic() + timeout_s
    while True:
        value = condition()
        if asyncio.iscoroutine(value):
            value = await value
        if value:
            return value
        assert time.monotonic() < deadline, f"not within {timeout_s} s: {what() if callable(what) else what}"
        await asyncio.sleep(POLL_S)


@dataclass(eq=False)
class Running:
    """One request under way, and what has come of it so far."""

    request_id: str
    prompt: Prompt
    params: SamplingParams
    chunks: list[Chunk] = field(default_factory=list)
    task: asyncio.Task[None] | None = None
    _news: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def tokens(self) -> list[int]:
        return [token for chunk in self.chunks for token in chunk.token_ids]

    @property
    def text(self) -> str:
        return "".join(chunk.text for chunk in self.chunks)

    @property
    def finish_reason(self) -> str | None:
        return self.chunks[-1].finish_reason if self.chunks else None

    async def reached(self, count: int, timeout_s: float = 60.0) -> None:
        """Return when `count` tokens have come. Raises what the request raised if it ends before."""
        async with asyncio.timeout(timeout_s):
            while len(self.tokens) < count:
                assert self.task is not None
                if self.task.done():
                    await self.task
                    raise AssertionError(f"{self.request_id} ended after {len(self.tokens)} tokens, waited for {count}")
                self._news.clear()
                news = asyncio.ensure_future(self._news.wait())
                await asyncio.wait((news, self.task), return_when=asyncio.FIRST_COMPLETED)
                news.cancel()

    async def finished(self, timeout_s: float = 60.0) -> list[int]:
        """All its tokens. Raises what the request raised."""
        assert self.task is not None
        async with asyncio.timeout(timeout_s):
            await asyncio.wait((self.task,))
        await self.task
        return self.tokens

    async def cancel(self) -> None:
        """Stop it as a user does who cancels the awaiting task."""
        assert self.task is not None
        self.task.cancel()
        await asyncio.wait((self.task,))

    async def follow(self, client: AsyncClient) -> None:
        stream = client.stream(self.prompt, self.params, request_id=self.request_id)
        async with contextlib.aclosing(stream) as chunks:
            async for chunk in chunks:
                self.chunks.append(chunk)
                self._news.set()


class Driver:
    """Clients of one cluster, the requests they run, and looks at its status.

    A status poll checks what must always hold: the counts of a pool add up, and no token of a request lies twice.
    """

    def __init__(self, cluster: LocalCluster) -> None:
        self.cluster = cluster
        self.running: list[Running] = []
        self._clients: dict[str, AsyncClient] = {}
        self._stack = AsyncExitStack()
        self._count = 0
        self._frozen: Counter[int] = Counter()

    async def client(self, at: str | None = None) -> AsyncClient:
        """The client of the gManager, or of one instance."""
        address = self.cluster.address if at is None else self.instance(at).address
        if address not in self._clients:
            self._clients[address] = await self._stack.enter_async_context(AsyncClient(address))
        return self._clients[address]

    def instance(self, instance_id: str) -> InstanceHandle:
        return next(handle for handle in self.cluster.instances if handle.instance_id == instance_id)

    async def start(self, prompt: Prompt, max_tokens: int, *, at: str | None = None, **params: Any) -> Running:
        """Submit a request, greedy unless told otherwise. at: the instance that is to own it."""
        sampling = SamplingParams(**({"max_tokens": max_tokens, "temperature": 0.0} | params))
        self._count += 1
        run = Running(f"request-{self._count}", prompt, sampling)
        run.task = asyncio.create_task(run.follow(await self.client(at)), name=run.request_id)
        self.running.append(run)
        return run

    async def generate(self, prompt: Prompt, max_tokens: int, *, at: str | None = None, **params: Any) -> list[int]:
        """Run one request to its end."""
        return await (await self.start(prompt, max_tokens, at=at, **params)).finished()

    async def restart(self, instance_id: str) -> None:
        """See `restart`."""
        await asyncio.to_thread(restart, self.cluster, instance_id)

    # --- looking

    async def statuses(self) -> dict[str, Status]:
        """Every member's status by instance; checked."""
        found = {status.instance.instance_id: status for status in await (await self.client()).statuses()}
        for status in found.values():
            check_blocks(status)
        return found

    async def spans(self, run: Running) -> dict[str, int]:
        """Tokens of a request by the instance they lie on; {} when nobody runs it."""
        for status in (await self.statuses()).values():
            for request in status.requests:
                if request.request_id.partition("~")[0] == run.request_id:
                    held: dict[str, int] = {}
                    for span in request.spans:
                        held[span.instance_id] = held.get(span.instance_id, 0) + span.num_tokens
                    return held
        return {}

    async def creditor(self, run: Running) -> str:
        """The instance that holds most of a request besides its owner; there must be one."""
        for owner, status in (await self.statuses()).items():
            for request in status.requests:
                if request.request_id.partition("~")[0] == run.request_id:
                    remote = [span for span in request.spans if span.instance_id != owner]
                    assert remote, f"nothing of {run.request_id} lies remote"
                    return max(remote, key=lambda span: span.num_tokens).instance_id
        raise AssertionError(f"nobody runs {run.request_id}")

    async def places(self, run: Running) -> set[str]:
        """Its owner and whom that has borrowed from for it, now or before; also when it has ended."""
        explained = (await (await self.client()).explain(run.request_id)).explained
        return {explained.instance_id} | {one.instance_id for one in explained.history if one.happened == "borrowed"}

    @asynccontextmanager
    async def frozen(self, *instance_ids: str) -> AsyncIterator[None]:
        """The workers of these instances stand still while the block looks at what runs there, so that it does not end
        meanwhile. The block must be short: an instance ends whose worker does not answer for 10 s."""
        workers = [worker_pid(self.instance(name)) for name in instance_ids]
        for pid in workers:
            self._frozen[pid] += 1
            os.kill(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            for pid in workers:
                self._frozen[pid] -= 1
                if not self._frozen[pid]:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGCONT)

    @asynccontextmanager
    async def frozen_at(self, run: Running, count: int, *instance_ids: str) -> AsyncIterator[None]:
        """As `frozen`, from when a request has so many tokens, and not many more however fast this machine is."""
        async with self.slowed(*instance_ids):
            await run.reached(count)
            async with self.frozen(*instance_ids):
                yield

    @asynccontextmanager
    async def slowed(self, *instance_ids: str) -> AsyncIterator[None]:
        """The workers of these instances stand still nine tenths of the time while the block runs, so that what they
        generate does not end before something else has happened, however fast this machine is."""

        async def stop_and_go() -> None:
            while True:
                async with self.frozen(*instance_ids):
                    await asyncio.sleep(9 * STEPS_S)
                await asyncio.sleep(STEPS_S)

        stopping = asyncio.create_task(stop_and_go(), name="stop and go")
        try:
            yield
        finally:
            stopping.cancel()
            await asyncio.wait((stopping,))

    async def settled(self, timeout_s: float = SETTLED_S) -> None:
        """Return when every block of every live instance is free and no request is left."""
        last: list[str] = []

        async def all_free() -> bool:
            last.clear()
            for name, status in (await self.statuses()).items():
                if status.instance.state in ("dead", "left", "unreachable"):
                    continue
                one = status.instance
                left = [request.request_id for request in status.requests]
                if one.blocks.free != one.blocks.total or left or one.borrowed_blocks or one.running or one.waiting:
                    last.append(f"{name}: {one.blocks}, borrowed {one.borrowed_blocks}, requests {left}")
            return not last

        await eventually(all_free, timeout_s, lambda: f"every block free: {last}")

    async def close(self) -> None:
        for run in self.running:
            assert run.task is not None
            run.task.cancel()
        await asyncio.gather(*(run.task for run in self.running if run.task), return_exceptions=True)
        await self._stack.aclose()


@asynccontextmanager
async def driving(cluster: LocalCluster) -> AsyncIterator[Driver]:
    """A driver; its requests and clients end with the block."""
    driver = Driver(cluster)
    try:
        yield driver
    finally:
        await driver.close()


def check_blocks(status: Status) -> None:
    """total = free + local + lent + reserved; spans are ascending, disjoint and within the request."""
    blocks = status.instance.blocks
    if status.instance.state != "starting":
        assert blocks.total == blocks.free + blocks.local + blocks.lent + blocks.reserved, status.instance
    for request in status.requests:
        end = 0
        for span in request.spans:
            assert span.first_token >= end and span.num_tokens > 0, request
            end = span.first_token + span.num_tokens
        assert end <= request.num_tokens, request


def restart(cluster: LocalCluster, instance_id: str) -> None:
    """End an instance if it still runs, as SIGKILL does, and start its binary again under the same name."""
    old = next(handle for handle in cluster.instances if handle.instance_id == instance_id)
    old.kill()
    handle = cluster.start_again(old.name)
    LASTING.add(handle.pid)
    wait_ready([handle], time.monotonic() + 60.0)
    cluster.replace(handle)
    _wait_known(cluster, {handle.pid})


def heal(cluster: LocalCluster) -> None:
    """Start again what an earlier test has ended or stopped."""
    if not cluster.gmanager.alive:
        cluster.restart_gmanager()
        LASTING.add(cluster.gmanager.pid)
        _wait_known(cluster, {handle.pid for handle in cluster.instances if handle.alive})
    for handle in list(cluster.instances):
        if not handle.alive or _is_stopped(handle):
            restart(cluster, handle.instance_id)


def _wait_known(cluster: LocalCluster, pids: set[int]) -> None:
    deadline_s = time.monotonic() + 30.0
    with Client(cluster.address) as client:
        while not pids <= {member.pid for member in client.members() if member.state == "ready"}:
            assert time.monotonic() < deadline_s, f"the gManager does not call all of {pids} ready"
            time.sleep(POLL_S)


def _is_stopped(handle: InstanceHandle) -> bool:
    processes = [psutil.Process(handle.pid), *psutil.Process(handle.pid).children()]
    return any(process.status() == psutil.STATUS_STOPPED for process in processes)


async def failure_of(run: Running, timeout_s: float = 60.0) -> RequestFailed:
    """How a request failed; it must."""
    try:
        tokens = await run.finished(timeout_s)
    except RequestFailed as failed:
        return failed
    raise AssertionError(f"it ended with {len(tokens)} tokens")


async def exit_of(handle: InstanceHandle, timeout_s: float = 30.0) -> int:
    """An instance's exit code, once it has ended."""
    await eventually(lambda: not handle.alive, timeout_s, f"{handle.instance_id} ended")
    assert handle.exit_code is not None
    return handle.exit_code


def signal_instance(handle: InstanceHandle, signum: int) -> None:
    """Signal the rManager and its worker: SIGSTOP and SIGCONT are what a frozen machine looks like to others."""
    for process in (psutil.Process(handle.pid), *psutil.Process(handle.pid).children(recursive=True)):
        os.kill(process.pid, signum)


def traced(file: Path) -> list[bytes]:
    """The records of a trace that are written; the last line may still be under way."""
    return [line for line in file.read_bytes().split(b"\n")[:-1] if line]


def worker_pid(handle: InstanceHandle) -> int:
    children = psutil.Process(handle.pid).children()
    (worker,) = (child for child in children if "distkv.actors.worker.start" in child.cmdline())
    return worker.pid
