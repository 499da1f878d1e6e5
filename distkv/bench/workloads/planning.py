"""A gManager in this process that has rBlocks moved as a benchmark plans it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from typing import NamedTuple

from distkv import events
from distkv.actors.gmanager.process import GManagerActor
from distkv.actors.task_scope import task_scope
from distkv.client.async_client import AsyncClient
from distkv.client.local.cluster import LocalCluster
from distkv.clock import MonotonicClock
from distkv.config import GManagerConfig
from distkv.control.commands import GManagerCommand, Publish
from distkv.wire.channel import ServerChannel
from distkv.wire.inboxes import GMANAGER_PORT
from distkv.wire.messages.common import PlanEpoch
from distkv.wire.messages.envelope import ToGManager
from distkv.wire.messages.to_rmanager import MoveKvcache

LOOK_S = 0.02


class PlanningGManager(GManagerActor):
    """A gManager of policy `contract` that plans what it is told. Created under the running loop.

    It swaps cycles of debts among those that `let_swap` names. runs: of DGFM, that have begun and ended.
    """

    def __init__(self, server: ServerChannel[ToGManager]) -> None:
        super().__init__(GManagerConfig(), server, MonotonicClock(), time.time_ns())
        self.runs: asyncio.Queue[events.DgfmBegun | events.DgfmEnded] = asyncio.Queue()
        self._number = 0

    def hears(self, instance_ids: Iterable[str]) -> bool:
        """Whether all of these are ready, and have sent heartbeats."""
        entries = map(self._core.ledger.entries.get, instance_ids)
        return all(entry is not None and entry.state == "ready" and entry.heartbeat is not None for entry in entries)

    def debts(self) -> Mapping[tuple[str, str], int]:
        """rBlocks by debtor and creditor, as the newest heartbeats say."""
        return self._core.ledger.debt_graph.debts()

    def move(self, request_id: str, debtor_id: str, num_blocks: int, destination: str) -> None:
        """Have rBlocks of a running request go there, or come home if that is where it runs."""
        entry = self._core.ledger.entries[debtor_id]
        assert entry.heartbeat is not None, "wait until it is ready"
        self._number += 1
        plan = MoveKvcache(
            request_id=request_id,
            num_blocks=num_blocks,
            destination=destination,
            epoch=PlanEpoch(1, self._number),
            debtor_incarnation=entry.member.incarnation,
            seq=entry.heartbeat.seq,
        )
        self._server.send(entry.route, self._envelopes.wrap(plan, ""))

    def let_swap(self, instance_ids: Iterable[str], *, is_allowed: bool) -> None:
        """Whether cycles of these are swapped from now on."""
        for name in instance_ids:
            self._core.ledger.debt_graph.leave_out(name, is_left_out=not is_allowed)
        self._alarm.check()

    def _carry_out(self, commands: Iterable[GManagerCommand], cause: str) -> None:
        """Events are not logged."""
        others = []
        for command in commands:
            match command:
                case Publish(event=events.DgfmBegun() | events.DgfmEnded() as event):
                    self.runs.put_nowait(event)
                case Publish():
                    pass
                case _:
                    others.append(command)
        super()._carry_out(others, cause)


async def until(condition: Callable[[], bool], timeout_s: float) -> None:
    """Return when it holds. Raises TimeoutError when it does not for so long."""
    async with asyncio.timeout(timeout_s):
        while True:
            if condition():
                return
            await asyncio.sleep(LOOK_S)


@asynccontextmanager
async def _planning_at(address: str) -> AsyncIterator[PlanningGManager]:
    """In place of the gManager that was at this address."""
    async with ServerChannel.bind(address, GMANAGER_PORT, name="gmanager") as server, task_scope() as tasks:
        gmanager = PlanningGManager(server)
        tasks.create_task(gmanager.serve(), name="serve")
        tasks.create_task(gmanager.ticking(), name="ticking")
        try:
            yield gmanager
        finally:
            gmanager.close()


class Planned(NamedTuple):
    """A cluster whose gManager is in this process. clients: by instance, which serves what its own is sent."""

    gmanager: PlanningGManager
    clients: Mapping[str, AsyncClient]
    tasks: asyncio.TaskGroup


@asynccontextmanager
async def planned(cluster: LocalCluster, timeout_s: float) -> AsyncIterator[Planned]:
    """Its own gManager is killed. Raises TimeoutError when the instances have not joined the other one in time."""
    address, names = cluster.address, [one.instance_id for one in cluster.instances]
    cluster.gmanager.kill()
    async with _planning_at(address) as gmanager, AsyncExitStack() as stack:
        await until(lambda: gmanager.hears(names), timeout_s)
        clients = {
            one.instance_id: await stack.enter_async_context(AsyncClient(one.address)) for one in cluster.instances
        }
        yield Planned(gmanager, clients, await stack.enter_async_context(task_scope()))
