"""A gManager and instances that answer clients as real ones do, without memory, models or decisions."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec

from distkv.client.background import BackgroundLoop
from distkv.errors import LinkClosed
from distkv.wire.channel import ServerChannel
from distkv.wire.envelope_factory import EnvelopeFactory
from distkv.wire.inboxes import CAPTURE
from distkv.wire.messages.common import Member
from distkv.wire.messages.counters import Counters
from distkv.wire.messages.envelope import Control
from distkv.wire.messages.to_client import (
    ClusterState,
    DebtEdge,
    DebtStatus,
    Dispatched,
    Explained,
    HistoryEntry,
    InstanceStatus,
    Located,
    PlanStatus,
    RequestEnded,
    RequestStatus,
    SlotCounts,
    SpanStatus,
    Status,
    TokenChunk,
)
from distkv.wire.messages.to_gmanager import ClusterQuery, ExplainQuery, Locate, MembersQuery
from distkv.wire.messages.to_rmanager import Cancel, KeepAlive, Members, StatusQuery, Submit
from tests.token_ids import prompt_of

TOTAL_BLOCKS = 64


class FakeServer:
    """Answers on loopback; `seen` is every message so far."""

    def __init__(self, name: str, port: int = 0) -> None:
        self.name = name
        self.seen: list[Any] = []
        self.news = asyncio.Condition()
        self._envelopes = EnvelopeFactory(name)
        self._channel = ServerChannel.bind(f"tcp://127.0.0.1:{port}", CAPTURE, name=name)
        self.address = self._channel.address
        self._task = asyncio.create_task(self._serve())

    async def _serve(self) -> None:
        while True:
            try:
                route, envelope = await self._channel.recv()
            except LinkClosed:
                return
            answers = self.answers(route, envelope.body)
            self.seen.append(envelope.body)  # before who gets an answer looks, from another thread
            for answer in answers:
                self.say(route, answer, envelope.id)
            async with self.news:
                self.news.notify_all()

    def answers(self, route: bytes, body: Control) -> list[Any]:
        raise NotImplementedError

    def say(self, route: bytes, body: Control, cause: str = "") -> None:
        self._channel.send(route, self._envelopes.wrap(body, cause))

    async def wait_for(self, kind: type, count: int = 1) -> list[Any]:
        """The messages of a kind, once there are `count`."""
        async with asyncio.timeout(20), self.news:
            await self.news.wait_for(lambda: len(self.of(kind)) >= count)
        return self.of(kind)

    def of(self, kind: type) -> list[Any]:
        return [body for body in self.seen if isinstance(body, kind)]

    def die(self) -> None:
        """As if killed."""
        self._channel.abort()


class FakeGManager(FakeServer):
    """Sends every request to the first ready member that is not excluded."""

    def __init__(self, members: list[Member], port: int = 0) -> None:
        self.members = members
        self.settles_in_s = 0.0
        super().__init__("gmanager", port)

    def answers(self, route: bytes, body: Control) -> list[Any]:
        match body:
            case MembersQuery():
                return [Members(version=1, members=tuple(self.members), settles_in_s=self.settles_in_s)]
            case Locate(request_id=name, exclude=exclude):
                for one in self.members:
                    if one.state == "ready" and one.instance_id not in exclude:
                        return [Located(request_id=name, instance_id=one.instance_id, address=one.address)]
                return [Located(request_id=name, reason="no instance is ready")]
            case ClusterQuery():
                debts = (DebtEdge("i0", "i1", 5),)
                plan = PlanStatus(
                    request_id="i0-r",
                    debtor_id="i0",
                    destination="i1",
                    num_blocks=3,
                    ago_s=6.0,
                    predicted_tokens_per_s=12.5,
                    achieved_tokens_per_s=-1.5,
                )
                state = ClusterState(policy="greedy", num_ready=2, debts=debts, num_debts=1, lent_blocks=5)
                return [msgspec.structs.replace(state, plans=(plan,), num_plans=7)]
            case ExplainQuery(request_id=name):
                return [Dispatched(query=name, request_id=name, instance_id="i0", load=3, num_ready=2)]
        return []


Serve = Callable[["FakeInstance", bytes, Submit], list[Any]]


def count_up(instance: FakeInstance, route: bytes, submit: Submit) -> list[Any]:
    """max_tokens chunks "0 ", "1 ", ..."""
    last = submit.params.max_tokens - 1
    return [
        TokenChunk(
            request_id=submit.request_id,
            token_ids=(index,),
            text=f"{index} ",
            finish_reason="length" if index == last else None,
            prompt_tokens=len(prompt_of(submit)),
        )
        for index in range(last + 1)
    ]


def first_only(instance: FakeInstance, route: bytes, submit: Submit) -> list[Any]:
    """One chunk, then nothing more."""
    return [TokenChunk(request_id=submit.request_id, token_ids=(0,), text="0 ")]


def nothing(instance: FakeInstance, route: bytes, submit: Submit) -> list[Any]:
    return []


def refuse(instance: FakeInstance, route: bytes, submit: Submit) -> list[Any]:
    """More than there is memory for."""
    return [RequestEnded(request_id=submit.request_id, kind="refused", reason="", needed_tokens=9, pool_tokens=4)]


class FakeInstance(FakeServer):
    """An instance; `serve` says what it answers to a Submit."""

    def __init__(self, name: str, serve: Serve = count_up, port: int = 0) -> None:
        self.serve = serve
        self.peers: list[Member] = []
        super().__init__(name, port)

    def member(self, state: str = "ready") -> Member:
        return Member(
            instance_id=self.name,
            incarnation=1,
            address=self.address,
            state=state,
            pid=11,
            worker_pid=12,
            block_tokens=16,
            total_blocks=TOTAL_BLOCKS,
            lendable_blocks=TOTAL_BLOCKS,
            free_blocks=TOTAL_BLOCKS - 4,
        )

    def answers(self, route: bytes, body: Control) -> list[Any]:
        match body:
            case MembersQuery():
                return [Members(version=1, members=tuple(self.peers or [self.member()]))]
            case Locate(request_id=name):
                return [Located(request_id=name, instance_id=self.name, address=self.address)]
            case StatusQuery():
                return [self.status()]
            case ClusterQuery():
                return [ClusterState()]
            case ExplainQuery(request_id=name) if name == f"{self.name}-r":
                return [self.explained(name)]
            case ExplainQuery(request_id=name):
                return [Explained(query=name, instance_id=self.name)]
            case Submit():
                return self.serve(self, route, body)
            case KeepAlive() | Cancel():
                return []
        return []

    def explained(self, name: str) -> Explained:
        return Explained(
            query=name,
            instance_id=self.name,
            request_id=name,
            state="running",
            came_ago_s=3.0,
            prompt_tokens=30,
            num_tokens=32,
            max_tokens=8,
            block_tokens=16,
            local_blocks=1,
            debts=(DebtStatus(instance_id="other", num_blocks=1),),
            growth_blocks=1,
            room_blocks=3,
            num_creditors=1,
            history=(HistoryEntry(happened="borrowed", ago_s=2.5, instance_id="other", why="place", num_blocks=1),),
        )

    def status(self) -> Status:
        return Status(
            instance=InstanceStatus(
                instance_id=self.name,
                state="ready",
                pid=11,
                worker_pid=12,
                block_tokens=16,
                blocks=SlotCounts(total=TOTAL_BLOCKS, free=TOTAL_BLOCKS - 3, local=2, lent=1),
                borrowed_blocks=5,
                running=1,
                waiting=0,
                counters=Counters(attend_queries=7, preemptions=9),
            ),
            requests=(
                RequestStatus(
                    request_id=f"{self.name}-r",
                    instance_id=self.name,
                    num_tokens=32,
                    spans=(SpanStatus(instance_id=self.name, first_token=0, num_tokens=32),),
                ),
            ),
        )


class FakeCluster:
    """A gManager and instances on loopback, in the test's loop."""

    def __init__(self, *serves: Serve) -> None:
        self.instances = [FakeInstance(f"i{index}", serve) for index, serve in enumerate(serves)]
        members = [one.member() for one in self.instances]
        for one in self.instances:
            one.peers = members
        self.gmanager = FakeGManager(members)
        self.address = self.gmanager.address

    def die(self) -> None:
        for server in (self.gmanager, *self.instances):
            server.die()


class BackgroundFakes:
    """Fakes in a loop of their own, for clients that block the test's thread."""

    def __init__(self) -> None:
        self.loop = BackgroundLoop("fakes")
        self.clusters: list[FakeCluster] = []

    def start(self, *serves: Serve) -> FakeCluster:
        async def make() -> FakeCluster:
            return FakeCluster(*serves)

        self.clusters.append(self.loop.call(make()))
        return self.clusters[-1]

    def close(self) -> None:
        async def die() -> None:
            for cluster in self.clusters:
                cluster.die()

        self.loop.call(die())
        self.loop.stop()
