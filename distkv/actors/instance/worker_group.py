"""The engine worker of an instance as its rManager sees it: a group of processes, its ranks. Today it has one."""

from __future__ import annotations

import asyncio
from typing import Self

from distkv.actors.instance.worker_rank import WorkerRank
from distkv.actors.task_scope import task_scope
from distkv.config import InstanceConfig
from distkv.wire.envelope_factory import EnvelopeFactory
from distkv.wire.messages.envelope import Envelope, FromWorker, ToWorker
from distkv.wire.messages.from_worker import WorkerReady


class WorkerGroup:
    """Starts and ends all ranks together. Every rank gets every command, in the same order; rank 0 answers for all.

    Used in `async with`, which stops it.
    """

    def __init__(self, ranks: tuple[WorkerRank, ...]) -> None:
        self._ranks = ranks

    @classmethod
    async def start(cls, config: InstanceConfig, incarnation: int, envelopes: EnvelopeFactory) -> Self:
        """Spawn the ranks; they load in the background, see `wait_ready`."""
        return cls((await WorkerRank.start(config, incarnation, envelopes),))

    @property
    def pid(self) -> int:
        """Of rank 0."""
        return self._ranks[0].pid

    async def wait_ready(self) -> WorkerReady:
        """What rank 0 says when all ranks are ready. Raises StartupFailed when one fails or dies before."""
        async with task_scope() as tasks:
            loading = [tasks.create_task(rank.wait_ready()) for rank in self._ranks]
            answers = [await one for one in loading]
        return answers[0]

    def send(self, body: ToWorker, cause: str) -> None:
        """On the ordered channel of every rank."""
        for rank in self._ranks:
            rank.send(body, cause)

    async def recv(self) -> Envelope[FromWorker]:
        """The next message of rank 0."""
        return await self._ranks[0].recv()

    def watch(self, tasks: asyncio.TaskGroup) -> None:
        """From now on `tasks` raise WorkerGone when a rank ends or hangs."""
        for rank in self._ranks:
            tasks.create_task(rank.watch(), name="watch worker")
            tasks.create_task(rank.probe(), name="probe worker")

    async def stop(self) -> None:
        """Ask the ranks to exit, and kill those that do not."""
        async with asyncio.TaskGroup() as tasks:
            for rank in self._ranks:
                tasks.create_task(rank.stop())

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()
