"""The cluster as the gateway sees it: which gManager it uses, the ready instances, the status of each."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Collection, Sequence
from dataclasses import dataclass
from typing import Self

import structlog

from distkv.client.async_client import AsyncClient
from distkv.client.instances.capacity import are_live, longest_request
from distkv.client.instances.directory import ANSWER_S
from distkv.client.owned_tasks import OwnedTasks
from distkv.client.prompts import TokenIds
from distkv.client.views.explaining import Explanation
from distkv.errors import ClusterUnreachable, DistKVError, NoInstanceReady
from distkv.recent_peak import RecentPeak
from distkv.types import MAX_INT, Chunk, SamplingParams
from distkv.wire.messages.common import Member
from distkv.wire.messages.to_client import ClusterState, Status
from distkv.wire.reachability import problems_at

REFRESH_S = 0.5
STATUS_AGE_S = 1.0
# One answer that is late does not make an instance unready.
SILENCE_S = 4.0
DOUBT_S = 5.0
"""After a gManager was silent it is asked for so long only where no other one answers."""


@dataclass(frozen=True, slots=True)
class Readiness:
    """What the members say of themselves, looked at once for all requests. ready: those that take requests.
    longest_request, longest_of_live, longest_of_listed: prompt and output, in tokens, of the longest request that one
    of these takes with what the others lend it; of those that are not known to be gone; and with those that are, which
    are listed for a while. is_loading: whether others still load, so that nobody knows what there will be. strangers:
    names of those with other tokens."""

    ready: tuple[Member, ...] = ()
    longest_request: int = 0
    longest_of_live: int = 0
    longest_of_listed: int = 0
    is_loading: bool = False
    strangers: tuple[str, ...] = ()

    @classmethod
    def of(cls, members: Sequence[Member], answering: Collection[str], vocabulary: str = "") -> Readiness:
        """answering: names of those that said lately that they are ready. vocabulary: as `Member` has it; empty if any
        will do."""
        listed: list[Member] = []
        others: list[Member] = []
        for member in members:
            is_stranger = bool(vocabulary) and member.vocabulary not in ("", vocabulary)
            (others if is_stranger else listed).append(member)
        live, strangers = are_live(listed), are_live(others)
        ready = [member for member in live if member.state == "ready" and member.instance_id in answering]
        return cls(
            ready=tuple(ready),
            longest_request=longest_request(ready),
            longest_of_live=longest_request(live),
            longest_of_listed=longest_request(listed),
            is_loading=any(member.is_loading for member in members),
            strangers=tuple(sorted(member.instance_id for member in strangers)),
        )


class Cluster:
    """Uses the first gManager of its list that answers and knows a ready instance; use it in `async with`.

    An instance is ready when the gManager lists it as ready and its own status, polled every second, says so too.
    One whose tokens are not those of `vocabulary` (as in `Member`) serves another model, and is never ready.
    Nothing is served before `wait_for` of them have been ready at the same time, so that what is said of the cluster
    then, such as the longest request, does not grow under the first requests; after that one is enough.

    The members are looked at whenever the list or a status comes, and not for a request, which costs the same however
    many there are.
    """

    def __init__(self, clients: Sequence[AsyncClient], wait_for: int = 1, vocabulary: str = "") -> None:
        self._wait_for = wait_for
        self._vocabulary = vocabulary
        self._is_complete = False
        self._answers = True
        self._live_peak = RecentPeak()
        self._clients = list(clients)
        self._client = self._clients[0]
        self._silent_s: dict[AsyncClient, float] = {}
        self._members: tuple[Member, ...] = ()
        self._readiness = Readiness()
        self._statuses: tuple[Status, ...] = ()
        self._state: ClusterState | None = None
        self._ready_s: dict[str, float] = {}
        self._polled_s = float("-inf")
        self._polling = asyncio.Lock()
        self._tasks = OwnedTasks()
        self._log = structlog.get_logger()

    async def __aenter__(self) -> Self:
        for client in self._clients:
            await client.__aenter__()
        self._tasks.start(self._refresh(), name="members of the cluster")
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """End what still runs with RequestFailed, and disconnect; safe to call twice."""
        await self._tasks.aclose()
        for client in self._clients:
            await client.close()

    def stream(
        self, prompt: TokenIds, params: SamplingParams, request_id: str, timeout_s: float
    ) -> AsyncGenerator[Chunk, None]:
        """The client's stream, see `AsyncClient.stream`. Raises NoInstanceReady, also while instances are waited
        for, or serve another model."""
        if self._is_waiting or self._are_strangers:
            raise self.refusal()
        return self._client.stream(prompt, params, request_id=request_id, timeout_s=timeout_s)

    async def explain(self, request_id: str) -> Explanation:
        """Why a request lies where it lies, see `AsyncClient.explain`."""
        return await self._client.explain(request_id)

    @property
    def gmanager(self) -> str:
        """The address of that which is used."""
        return self._client.address

    @property
    def ready(self) -> tuple[Member, ...]:
        """The instances that take requests."""
        return self._readiness.ready

    @property
    def unready(self) -> str:
        """Why no request is served now; empty if requests are."""
        if not (self._answers or self.ready):
            return "the cluster does not answer"
        if self._are_strangers:
            return "the instances serve another model: its tokens are not those of this gateway's"
        if self._is_waiting and self._wait_for > 1:
            return f"{len(self.ready)} of {self._wait_for} instances are ready"
        return "" if self.ready else "no instance is ready"

    def refusal(self) -> DistKVError:
        """`unready` as an error, that of the client."""
        if not (self._answers or self.ready):
            return ClusterUnreachable(self.gmanager, self.unready)
        return NoInstanceReady(self.unready)

    @property
    def longest_request(self) -> int:
        """Prompt and output, in tokens, of the longest request that some ready instance takes; 0 while nothing is
        served."""
        return 0 if self._is_waiting else self._readiness.longest_request

    @property
    def longest_lately(self) -> int:
        """As `longest_request`, of the instances that are not known to be gone, for one that is late comes back; the
        most that it was a short while ago, also before this gateway began, for those that died may come back too, and
        are listed for so long. MAX_INT while others load, or may not have joined yet."""
        lately = self._look_at_live()
        if self._is_waiting:
            return lately
        is_growing = self._readiness.is_loading or self._client.is_settling
        return MAX_INT if is_growing else max(lately, self._readiness.longest_of_listed)

    def _look_at_live(self) -> int:
        live = 0 if self._is_waiting else self._readiness.longest_of_live
        return self._live_peak.look(live, asyncio.get_running_loop().time())

    @property
    def _is_waiting(self) -> bool:
        return not self._is_complete and self._wait_for > 1

    @property
    def _are_strangers(self) -> bool:
        return bool(self._readiness.strangers) and not self.ready

    @property
    def last_statuses(self) -> tuple[Status, ...]:
        """The last result of `statuses`."""
        return self._statuses

    @property
    def last_state(self) -> ClusterState | None:
        """What a gManager said of the whole cluster when the statuses were polled; None if none did."""
        return self._state

    async def statuses(self) -> tuple[Status, ...]:
        """The status of every instance, at most STATUS_AGE_S old; the last known one when nobody answers."""
        loop = asyncio.get_running_loop()
        async with self._polling:
            if loop.time() - self._polled_s >= STATUS_AGE_S:
                with contextlib.suppress(ClusterUnreachable):
                    self._statuses = await self._client.statuses()
                    self._state = await self._client.cluster()
                self._polled_s = loop.time()
                self._note(self._polled_s)
        return self._statuses

    def _note(self, now_s: float) -> None:
        said: dict[str, float] = {}
        for status in self._statuses:
            name, state = status.instance.instance_id, status.instance.state
            if state == "ready":
                said[name] = now_s
            elif state == "unreachable" and name in self._ready_s:
                said[name] = self._ready_s[name]
        self._ready_s = said
        self._look()

    def _look(self) -> None:
        """The members, or what they say, may be others than before, or silent for longer."""
        since_s = asyncio.get_running_loop().time() - SILENCE_S
        answering = {name for name, said_s in self._ready_s.items() if said_s > since_s}
        before = self._readiness.strangers
        self._readiness = Readiness.of(self._members, answering, self._vocabulary)
        if self._readiness.strangers not in (before, ()):
            self._log.warning("instances of another model", instances=self._readiness.strangers)

    async def _refresh(self) -> None:
        logged: set[str] | None = None
        while True:
            await self._find_members()
            await self.statuses()
            ready = {member.instance_id for member in self.ready}
            self._is_complete = self._is_complete or len(ready) >= self._wait_for
            self._look_at_live()
            if ready != logged:
                self._log.info("ready instances changed", gmanager=self.gmanager, instances=sorted(ready))
                logged = ready
            await asyncio.sleep(REFRESH_S)

    async def _find_members(self) -> None:
        answered_before, self._answers = self._answers, await self._ask_for_members()
        if answered_before and not self._answers:
            problems = await problems_at([client.address for client in self._clients])
            self._log.warning("the cluster does not answer", gmanagers=problems)

    async def _ask_for_members(self) -> bool:
        """Whether anybody answered. The first of the list that answers and knows a ready instance is used, as instances
        ask the first that answers them; else the first that answers."""
        chosen: tuple[AsyncClient, tuple[Member, ...]] | None = None
        for client in sorted(self._clients, key=self._is_doubted):
            members = await self._answer_of(client)
            if members is None:
                continue
            knows_ready = any(member.state == "ready" for member in members)
            if chosen is None or knows_ready:
                chosen = client, members
            if knows_ready:
                break
        if chosen is not None:
            self._client, self._members = chosen
        else:  # whom instances tell who is there, as long as no gManager does
            with contextlib.suppress(ClusterUnreachable, TimeoutError):
                self._members = await asyncio.wait_for(self._client.members(), ANSWER_S)
        self._look()
        return chosen is not None

    async def _answer_of(self, client: AsyncClient) -> tuple[Member, ...] | None:
        """The members that a gManager lists; None if it does not answer now."""
        try:
            # Whoever was silent before is not waited for as long as at first: what instances say ages meanwhile.
            limit_s = ANSWER_S if client in self._silent_s else None
            members = await asyncio.wait_for(client.members(), limit_s)
        except (ClusterUnreachable, TimeoutError):
            members = None
        if members is None or not client.address_answers:
            self._silent_s[client] = asyncio.get_running_loop().time()
            return None
        self._silent_s.pop(client, None)
        return members

    def _is_doubted(self, client: AsyncClient) -> bool:
        """Whether it was silent a moment ago: then it is asked after all others."""
        return self._silent_s.get(client, float("-inf")) > asyncio.get_running_loop().time() - DOUBT_S
