"""One connection of a client to a gManager or rManager: sends messages, and passes on what comes, to the request or
query that waits for it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar, assert_never

import msgspec

from distkv.client.instances.events import ConnectionLost, RequestEvents
from distkv.client.owned_tasks import OwnedTasks
from distkv.client.turns import Turns
from distkv.errors import LinkClosed, WireError
from distkv.wire.channel import ClientChannel
from distkv.wire.envelope_factory import EnvelopeFactory
from distkv.wire.inboxes import CLIENT_CONNECTION
from distkv.wire.messages.common import clipped
from distkv.wire.messages.envelope import ClientRequest, Envelope, ToClient
from distkv.wire.messages.to_client import (
    ClusterState,
    Dispatched,
    Explained,
    Located,
    Rejected,
    RequestEnded,
    Status,
    TokenChunk,
    TokenChunks,
)
from distkv.wire.messages.to_gmanager import ClusterQuery, ExplainQuery, Locate, MembersQuery
from distkv.wire.messages.to_rmanager import Cancel, KeepAlive, Members, StatusQuery, Submit

SILENCE_S = 10.0
LONGEST_GAP_S = 2.0
"""So much counts as silence at most between two looks. Beyond that it was this process that was stopped or busy, and
what the other end said meanwhile waits to be read."""
T = TypeVar("T", Members, Status, Located, Explained, Dispatched, ClusterState)
Bounded = TypeVar("Bounded", Explained, Dispatched, ClusterState)

Answer = Members | Status | Located | Explained | Dispatched | ClusterState | ConnectionLost


class Connection:
    """Lives until it is lost or closed; a lost one is replaced, never repaired: its requests are gone with it.

    lost: why nothing comes any more, None while something may. tasks: own the one that reads, which ends when the
    connection is lost or closed. turns: of those who read what comes for a request. on_live(connection): its
    `live_requests` changed. Created under the running loop.
    """

    def __init__(
        self,
        address: str,
        envelopes: EnvelopeFactory,
        on_members: Callable[[str, Members], None],
        on_live: Callable[[Connection], None],
        tasks: OwnedTasks,
        turns: Turns,
    ) -> None:
        self.address = address
        self.lost: ConnectionLost | None = None
        self._envelopes = envelopes
        self._on_members = on_members
        self._on_live = on_live
        self._loop = asyncio.get_running_loop()
        self._requests: dict[str, RequestEvents] = {}
        self._submitted: dict[str, str] = {}
        self._waiting: dict[str, list[asyncio.Future[Answer]]] = {}
        self._turns = turns
        self._silent_s = 0.0
        self._looked_s = self._loop.time()
        self._channel = ClientChannel.connect(address, CLIENT_CONNECTION, on_disconnected=self._on_disconnected)
        tasks.start(self._read(), name=f"read {address}")

    @property
    def live_requests(self) -> int:
        """Live requests on this connection."""
        return len(self._requests)

    async def established(self, timeout_s: float) -> None:
        """Return when the other end is there. Raises ConnectionLost after `timeout_s`."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._channel.wait_connected()
        except (TimeoutError, LinkClosed):
            raise self.lost or ConnectionLost(f"no connection within {timeout_s:g} s") from None

    async def members(self, query: MembersQuery, timeout_s: float) -> Members:
        """Query the members of the cluster, or what changed; returns the last part of the answer. Raises
        ConnectionLost, also when no answer comes in time."""
        return await self._query(query, Members, "members", timeout_s)

    async def status(self, timeout_s: float) -> Status:
        """Query the status of an rManager. Raises as `members`."""
        return await self._query(StatusQuery(), Status, "status", timeout_s)

    async def locate(self, query: Locate, timeout_s: float) -> Located:
        """Query where a request should go. Raises as `members`."""
        return await self._query(query, Located, "locate " + query.request_id, timeout_s)

    async def cluster(self, timeout_s: float) -> ClusterState:
        """Query what a gManager knows of the whole cluster. Raises as `members`."""
        return await self._query_again(ClusterQuery(), ClusterState, "cluster", timeout_s)

    async def explained(self, query: ExplainQuery, timeout_s: float) -> Explained:
        """Query what an rManager knows of a request. Raises as `members`."""
        return await self._query_again(query, Explained, "explained " + query.request_id, timeout_s)

    async def dispatched(self, query: ExplainQuery, timeout_s: float) -> Dispatched:
        """Query what a gManager knows of a request. Raises as `members`."""
        return await self._query_again(query, Dispatched, "dispatched " + query.request_id, timeout_s)

    def send(self, body: ClientRequest) -> bool:
        """Queue a message; False when that is not possible any more. Raises FrameTooLarge."""
        return self.lost is None and self._channel.send(self._envelopes.wrap(body))

    def attach(self, request_id: str) -> RequestEvents:
        """What will come for a request, ending with a last chunk, a RequestEnded or a ConnectionLost."""
        events = RequestEvents(request_id, self._turns)
        if self.lost is not None:
            events.put(self.lost)
        elif not self._requests:
            self._silent_s = 0.0
        self._requests[request_id] = events
        self._on_live(self)
        return events

    def submit(self, submit: Submit, events: RequestEvents) -> bool:
        """Queue the Submit of a request that was attached as `events`. False and errors as `send`."""
        envelope = self._envelopes.wrap(submit)
        if self.lost is not None or not self._channel.send(envelope):
            return False
        events.envelope_id = envelope.id
        self._submitted[envelope.id] = submit.request_id
        return True

    def detach(self, request_id: str, *, cancel: bool) -> None:
        """Forget a request; with `cancel` the instance stops it."""
        events = self._requests.pop(request_id, None)
        if events is None:
            return
        self._on_live(self)
        self._submitted.pop(events.envelope_id, None)
        if cancel:
            self.send(Cancel(request_id=request_id))

    def keep_alive(self, query: MembersQuery | None) -> None:
        """Call every second: sends KeepAlive, and a query that must be answered, while requests wait for output.

        query: send this one in any case, because the gManager does not answer it.
        """
        now_s = self._loop.time()
        self._silent_s += min(LONGEST_GAP_S, now_s - self._looked_s)
        self._looked_s = now_s
        if self._requests and self._silent_s > SILENCE_S:
            self._lose(ConnectionLost(f"silent for {self._silent_s:.0f} s"))
            return
        if self._requests:
            self.send(KeepAlive())
        if query is not None:
            self.send(query)
        elif self._requests:
            self.send(MembersQuery(changes_only=True))

    def close(self) -> None:
        """Cancel what still runs here and disconnect."""
        for request_id in self._requests:
            self.send(Cancel(request_id=request_id))
        self._lose(ConnectionLost("closed by this client"))

    async def _query_again(self, body: ClientRequest, kind: type[Bounded], key: str, timeout_s: float) -> Bounded:
        """As `_query`, and once more whenever too many such queries came, while there is time."""
        deadline_s = self._loop.time() + timeout_s
        while True:
            got = await self._query(body, kind, key, deadline_s - self._loop.time())
            if not got.retry_after_s:
                return got
            if self._loop.time() + got.retry_after_s >= deadline_s:
                raise ConnectionLost(f"too many such queries; it answers again in {got.retry_after_s:.2g} s")
            await asyncio.sleep(got.retry_after_s)

    async def _query(self, body: ClientRequest, kind: type[T], key: str, timeout_s: float) -> T:
        if self.lost is not None:
            raise self.lost
        answer: asyncio.Future[Answer] = self._loop.create_future()
        waiting = self._waiting.setdefault(key, [])
        waiting.append(answer)
        try:
            if not self.send(body):
                raise ConnectionLost("its queue is full")
            async with asyncio.timeout(timeout_s):
                got = await answer
        except TimeoutError:
            raise ConnectionLost(f"no answer within {timeout_s:g} s") from None
        finally:
            waiting.remove(answer)
            if not waiting and self._waiting.get(key) is waiting:
                del self._waiting[key]
        if isinstance(got, ConnectionLost):
            raise got
        assert isinstance(got, kind)
        return got

    async def _read(self) -> None:
        while self.lost is None:
            try:
                envelope = await self._channel.recv()
            except WireError as error:
                self._not_understood(error)
                continue
            except LinkClosed:
                return
            self._receive(envelope)

    def _receive(self, envelope: Envelope[ToClient]) -> None:
        self._silent_s = 0.0
        match envelope.body:
            case TokenChunk() as chunk:
                self._take(chunk)
            case TokenChunks() as several:
                for chunk in several.chunks:
                    self._take(chunk)
            case RequestEnded() as ended:
                self._take(msgspec.structs.replace(ended, reason=clipped(ended.reason)))
            case Members() as members:
                self._on_members(self.address, members)
                if not members.more:
                    self._answer("members", members)
            case Status() as status:
                self._answer("status", status)
            case Explained() as explained:
                self._answer("explained " + explained.query, explained)
            case Dispatched() as dispatched:
                self._answer("dispatched " + dispatched.query, dispatched)
            case ClusterState() as cluster:
                self._answer("cluster", cluster)
            case Located() as located:
                located = msgspec.structs.replace(located, reason=clipped(located.reason))
                self._answer("locate " + located.request_id, located)
            case Rejected() as rejected:
                self._rejected(envelope.cause, rejected)
            case _:
                assert_never(envelope.body)

    def _take(self, event: TokenChunk | RequestEnded) -> None:
        events = self._requests.get(event.request_id)
        if events is not None and not events.put(event):
            self.detach(event.request_id, cancel=True)

    def _rejected(self, cause: str, rejected: Rejected) -> None:
        """One request that was not understood fails alone, where the rejection says which."""
        why = f"it refused what this client sent: {clipped(rejected.reason)}"
        request_id = self._submitted.get(cause)
        if request_id is not None:
            self._take(RequestEnded(request_id=request_id, kind="failed", reason=why))
        if rejected.closed:
            self._lose(ConnectionLost(why, rejected=True))

    def _answer(self, key: str, body: Answer) -> None:
        for answer in self._waiting.get(key, ()):
            if not answer.done():
                answer.set_result(body)

    def _not_understood(self, error: WireError) -> None:
        """What says which request it is about fails that request alone, if it is (still) one of these."""
        if not error.request_id:
            self._lose(ConnectionLost(str(error)))
            return
        self._take(RequestEnded(request_id=error.request_id, kind="failed", reason=clipped(str(error))))
        self._answer("locate " + error.request_id, ConnectionLost(str(error)))

    def _on_disconnected(self) -> None:
        """The last words of a process that ended may be here unread."""
        while self.lost is None:
            try:
                envelope = self._channel.recv_now()
            except WireError as error:
                self._not_understood(error)
                continue
            if envelope is None:
                break
            self._receive(envelope)
        self._lose(ConnectionLost("the connection was lost"))

    def _lose(self, lost: ConnectionLost) -> None:
        if self.lost is not None:
            return
        self.lost = lost
        self._channel.close()
        for events in self._requests.values():
            events.put(lost)
        for key in list(self._waiting):
            self._answer(key, lost)
