"""Two real instances have borrowed from each other, as a gManager in this process has planned it: what each has at the
other comes home while both generate, and no token is another."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from distkv.actors.gmanager.process import GManagerActor
from distkv.actors.task_scope import task_scope
from distkv.clock import MonotonicClock
from distkv.config import GManagerConfig
from distkv.control.loan.debtor.recall import Cause
from distkv.wire.channel import ServerChannel
from distkv.wire.envelope_factory import EnvelopeFactory
from distkv.wire.inboxes import GMANAGER_PORT
from distkv.wire.messages.common import PlanEpoch
from distkv.wire.messages.to_rmanager import MoveKvcache
from tests.checkpoints import prompt_ids
from tests.cluster.driving import Driver, Running, driving, eventually

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]
BLOCKS, TOKENS = 16, 1000


class Planner:
    """A gManager that also has moves carried out that no policy has planned."""

    def __init__(self, actor: GManagerActor, server: ServerChannel) -> None:
        self.ledger = actor._core.ledger
        self._core = actor._core
        self.swap(False)
        self._server = server
        self._envelopes = EnvelopeFactory("gmanager")
        self._number = 0

    def swap(self, is_on: bool) -> None:
        """Whether it looks for cycles. At first it does not: what is owed may still be on its way, and whoever has
        nothing to swap yet is left alone for seconds."""
        self._core._swaps = is_on

    def hears(self, *names: str) -> bool:
        entries = [self.ledger.entries.get(name) for name in names]
        return all(entry is not None and entry.state == "ready" and entry.heartbeat is not None for entry in entries)

    def move(self, run: Running, owner: str, destination: str) -> None:
        entry = self.ledger.entries[owner]
        assert entry.heartbeat is not None
        self._number += 1
        plan = MoveKvcache(
            request_id=run.request_id,
            num_blocks=BLOCKS,
            destination=destination,
            epoch=PlanEpoch(1, self._number),
            debtor_incarnation=entry.member.incarnation,
            seq=entry.heartbeat.seq,
        )
        self._server.send(entry.route, self._envelopes.wrap(plan, ""))


@asynccontextmanager
async def planning(address: str) -> AsyncIterator[Planner]:
    """In place of the gManager that was at this address."""
    async with ServerChannel.bind(address, GMANAGER_PORT, name="gmanager") as server, task_scope() as tasks:
        actor = GManagerActor(GManagerConfig(validate_state=True), server, MonotonicClock(), time.time_ns())
        tasks.create_task(actor.serve(), name="serve")
        tasks.create_task(actor.ticking(), name="ticking")
        try:
            yield Planner(actor, server)
        finally:
            actor.close()


async def swapped(driver: Driver) -> dict[str, int]:
    return {name: status.instance.counters.swapped_blocks for name, status in (await driver.statuses()).items()}


async def test_what_two_instances_owe_each_other_comes_home(start, expect):
    cluster = start(2, 2048)
    cluster.gmanager.kill()
    async with planning(cluster.address) as planner, driving(cluster) as driver:
        await eventually(lambda: planner.hears("i0", "i1"), 60, "both have joined")
        runs = {
            name: await driver.start(prompt_ids(700, seed=n), TOKENS, at=name) for n, name in enumerate(("i0", "i1"))
        }
        for run in runs.values():
            await run.reached(2)
        planner.move(runs["i0"], "i0", "i1")
        planner.move(runs["i1"], "i1", "i0")
        graph = planner.ledger.debt_graph

        async def lies_there() -> bool:
            spans = [await driver.spans(runs[name]) for name in ("i0", "i1")]
            return all(len(one) == 2 for one in spans) and bool(graph.owed("i0", "i1") and graph.owed("i1", "i0"))

        await eventually(lies_there, 10, "blocks of each lie at the other")
        planner.swap(True)

        async def came_home() -> bool:
            return min((await swapped(driver)).values()) >= 4

        await eventually(came_home, 20, "blocks came home")
        assert not any(run.task is None or run.task.done() for run in runs.values()), "while both generate"
        explained = (await (await driver.client()).explain(runs["i0"].request_id)).explained
        reasons = {entry.why for entry in explained.history if entry.happened == "came_home"}
        assert Cause.SWAP.value in reasons
        for run in runs.values():
            expect(run.prompt, await run.finished(), TOKENS)
        await driver.settled()
        assert graph.debts() == {}
