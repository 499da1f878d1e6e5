"""Who is in the cluster and where a request should go, also while no gManager answers."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Collection
from typing import NamedTuple

import msgspec

from distkv.client.instances.capacity import are_live, longest_requests, takes
from distkv.client.instances.connection import Connection
from distkv.client.instances.events import ConnectionLost
from distkv.client.instances.instance_order import InstanceOrder
from distkv.client.owned_tasks import OwnedTasks
from distkv.client.turns import Turns
from distkv.errors import ClusterUnreachable, ConfigError, LinkClosed, NoInstanceReady, RequestFailed
from distkv.wire.envelope_factory import EnvelopeFactory
from distkv.wire.messages.common import Member
from distkv.wire.messages.member_versions import MemberCursor
from distkv.wire.messages.to_gmanager import MAX_NAMES, Locate
from distkv.wire.messages.to_rmanager import Members, Submit

FIRST_CONTACT_S = 3.0
ANSWER_S = 1.0
REFRESH_S = 1.0
SUSPECT_S = 5.0
LONG_PROMPT_BYTES = 4096
# A gManager that was restarted learns its members from their next heartbeats; until then none is left out.
REBUILD_S = 5.0


class Target(NamedTuple):
    """The instance that is to serve a request."""

    instance_id: str
    address: str


class Directory:
    """The client's connections and its cached member list, refreshed every second while it is open.

    The list is soft: it is whatever a gManager, or else an instance, sent last; only what changed is sent again. All
    tasks of the client are owned here: the one that refreshes the list, and one that reads each connection. loop: the
    event loop under which it was made, and in which all of it is used.
    """

    def __init__(self, address: str, envelopes: EnvelopeFactory) -> None:
        self.address = address
        self._envelopes = envelopes
        self._members: dict[str, Member] | None = None
        self._order = InstanceOrder()
        self._cursors: dict[str, MemberCursor] = {}
        self._bootstrap_answers = True
        self._bootstrap_lost = False
        self._closed = False
        self._encoding = asyncio.Lock()
        self._rebuilt_at_s = 0.0
        self._settled_at_s = 0.0
        self._suspects: dict[str, float] = {}
        self._connections: dict[str, Connection] = {}
        self.loop = asyncio.get_running_loop()
        self._tasks = OwnedTasks()
        self._turns = Turns()
        self._bootstrap()
        self._tasks.start(self._refresh(), name=f"members of {address}")

    @property
    def bootstrap_answers(self) -> bool:
        """Whether the address that was given answered the last query."""
        return self._bootstrap_answers

    @property
    def is_settling(self) -> bool:
        """Whether others may join yet that were started together with those listed."""
        return self.loop.time() < self._settled_at_s

    @property
    def closed(self) -> bool:
        return self._closed

    async def aclose(self) -> None:
        """Cancel all requests, end every connection, and return when all tasks have ended."""
        self._closed = True
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()
        await self._tasks.aclose()

    def connection(self, address: str) -> Connection:
        """The connection to an address, a new one if there is none or it was lost.

        Raises ConnectionLost when a member's address is none, and once this directory is closed; ConfigError when the
        address that was given is none.
        """
        if self._closed:
            raise ConnectionLost("closed by this client")
        known = self._connections.get(address)
        if known is None or known.lost is not None:
            if known is not None and address == self.address:
                self._bootstrap_lost, self._bootstrap_answers = True, False
            try:
                known = Connection(address, self._envelopes, self._on_members, self._on_live, self._tasks, self._turns)
            except ConfigError as error:
                if address == self.address:
                    raise
                raise ConnectionLost(str(error)) from None
            except LinkClosed as error:
                raise ConnectionLost(error.why) from None
            self._connections[address] = known
            self._on_live(known)
        return known

    async def members(self) -> tuple[Member, ...]:
        """The members as the cluster lists them now, or as it last did if nobody answers. Raises ClusterUnreachable."""
        if self._members is None or self._bootstrap_answers:
            await self._query_bootstrap()
        return self._known()

    def _known(self) -> tuple[Member, ...]:
        return tuple((self._members or {}).values())

    async def locate(self, query: Locate) -> Target:
        """Where a request should go: the gManager's choice, else, of the ready instances that take one so long, that
        with the fewest requests of this client, of these the one with most free memory.

        Raises ClusterUnreachable when nobody ever answered, NoInstanceReady.
        """
        if self._members is None:
            await self.members()
        if self._closed:
            raise RequestFailed(False, "closed by this client")
        reason = "no instance is ready"
        try:
            bootstrap = self._bootstrap()  # a lost one is replaced, and does not count as answering
        except ConnectionLost as lost:
            reason = self._unanswered(lost)
        if self._bootstrap_answers:
            # Those just lost here are still alive to a gManager that has not missed their heartbeats yet.
            doubted = [one for one in reversed(self._suspects) if self._suspected(one)]
            avoided = tuple(dict.fromkeys([*query.exclude, *doubted]))[:MAX_NAMES]
            try:
                located = await bootstrap.locate(msgspec.structs.replace(query, exclude=avoided), ANSWER_S)
                if located.address and located.instance_id not in avoided:
                    return Target(located.instance_id, located.address)
                reason = located.reason or reason
            except ConnectionLost as lost:
                reason = self._unanswered(lost)
        best = self._order.first(query.exclude, self._suspected, lambda one: takes(one, query.num_tokens))
        if best is None:
            raise NoInstanceReady(reason)
        return Target(best.instance_id, best.address)

    def _unanswered(self, lost: ConnectionLost) -> str:
        self._bootstrap_answers = False
        return f"no instance is ready, and nothing answers at {self.address}: {lost.why}"

    def target(self, instance_id: str) -> Target | None:
        """A ready instance by its name; None if the member list has none, or it was just lost here."""
        member = (self._members or {}).get(instance_id)
        if member is None or member.state != "ready" or self._suspected(instance_id):
            return None
        return Target(member.instance_id, member.address)

    def taking(self, num_tokens: int, refused_by: str, exclude: Collection[str]) -> str:
        """The ready instance that should get a request of so many tokens, prompt and output, which another one refused
        for its length. Empty if the member list has none that takes it, or says that the other one does: then the
        cluster is not as listed. Looks at all members."""
        longest = longest_requests(are_live(self._known()))
        if longest.get(refused_by, 0) >= num_tokens:
            return ""
        best = self._order.first(
            (*exclude, refused_by), self._suspected, lambda one: longest[one.instance_id] >= num_tokens
        )
        return "" if best is None or longest[best.instance_id] < num_tokens else best.instance_id

    async def is_ready(self, instance_id: str) -> bool:
        """Whether the cluster calls an instance ready now; True if nobody answers."""
        try:
            members = await self.members()
        except ClusterUnreachable:
            return True
        return any(m.instance_id == instance_id and m.state == "ready" for m in members)

    @contextlib.asynccontextmanager
    async def encoding(self, submit: Submit) -> AsyncIterator[None]:
        """Around sending a request: a long prompt takes milliseconds to encode, so only one has a turn of the event
        loop, however many choices of a request were just located."""
        ids = submit.prompt_token_ids
        if len(submit.prompt if ids is None else ids) < LONG_PROMPT_BYTES:
            yield
            return
        async with self._encoding:
            yield
            await asyncio.sleep(0)

    def suspect(self, instance_id: str) -> None:
        """This instance was just lost: choose it last for a while."""
        others = (one for one in self._suspects if one != instance_id and self._suspected(one))
        self._suspects = {one: self._suspects[one] for one in others}
        self._suspects[instance_id] = self.loop.time() + SUSPECT_S

    def _suspected(self, instance_id: str) -> bool:
        return self._suspects.get(instance_id, 0.0) > self.loop.time()

    def _on_live(self, connection: Connection) -> None:
        if self._connections.get(connection.address) is connection:
            self._order.has_live(connection.address, connection.live_requests)

    def _bootstrap(self) -> Connection:
        return self.connection(self.address)

    async def _query_bootstrap(self) -> None:
        if 0.0 < self._rebuilt_at_s <= self.loop.time():
            self._rebuilt_at_s = 0.0
            del self._cursors[self.address]  # all it has now is all there is
        try:
            timeout_s = FIRST_CONTACT_S if self._members is None else ANSWER_S
            await self._bootstrap().members(self._cursor(self.address).query(), timeout_s)
            self._bootstrap_answers = True
        except ConnectionLost as lost:
            self._bootstrap_answers = False
            if self._members is None:
                raise ClusterUnreachable(self.address, lost.why) from None

    def _cursor(self, address: str) -> MemberCursor:
        return self._cursors.setdefault(address, MemberCursor())

    def _on_members(self, address: str, message: Members) -> None:
        if address != self.address and (self._bootstrap_answers or (message.base == 0 and not message.members)):
            return  # instances repeat what a gManager sent them a moment ago
        cursor = self._cursor(address)
        if not cursor.take(message):
            return
        now_s = self.loop.time()
        if address == self.address:
            self._settled_at_s = now_s + message.settles_in_s
        if address == self.address and self._bootstrap_lost:
            self._bootstrap_lost, self._rebuilt_at_s = False, now_s + REBUILD_S
        known = self._members = self._members or {}
        for member in message.members:
            known[member.instance_id] = member
            self._order.put(member)
        named = cursor.take_whole(message)
        unnamed = () if named is None or now_s < self._rebuilt_at_s else known.keys() - named
        for instance_id in (*message.gone, *unnamed):
            known.pop(instance_id, None)
            self._order.remove(instance_id)

    async def _refresh(self) -> None:
        while True:
            due_s = self.loop.time() + REFRESH_S
            if self._members is not None:
                await self._query_bootstrap()
                self._drop_idle()
            await asyncio.sleep(due_s - self.loop.time())
            for connection in list(self._connections.values()):
                connection.keep_alive(None if self._bootstrap_answers else self._cursor(connection.address).query())

    def _drop_idle(self) -> None:
        wanted = {member.address for member in self._known()}
        for address, connection in list(self._connections.items()):
            if address != self.address and not connection.live_requests and (address not in wanted or connection.lost):
                del self._connections[address]
                self._cursors.pop(address, None)
                connection.close()
