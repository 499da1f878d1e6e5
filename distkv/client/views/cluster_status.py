"""The status of a whole cluster: every member is queried, and one that does not answer keeps its last numbers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any, NamedTuple

import msgspec

from distkv.client.instances.directory import ANSWER_S, Directory
from distkv.client.instances.events import ConnectionLost
from distkv.client.owned_tasks import gather_limited
from distkv.wire.messages.common import Member
from distkv.wire.messages.counters import COUNTERS
from distkv.wire.messages.to_client import ClusterState, InstanceStatus, RequestStatus, SlotCounts, Status

MAX_AT_ONCE = 256


class StatusCollector:
    """Collects the members' statuses and remembers the last answer of each."""

    def __init__(self) -> None:
        self._last: dict[str, InstanceStatus] = {}

    async def collect(self, directory: Directory, members: Sequence[Member]) -> tuple[Status, ...]:
        """One status per member, ordered by id ("i2" before "i10"); MAX_AT_ONCE are asked at a time, for ANSWER_S."""
        ordered = sorted(members, key=lambda member: (len(member.instance_id), member.instance_id))
        queries = [partial(self._status_of, directory, member) for member in ordered]
        found = await gather_limited(queries, MAX_AT_ONCE)
        known = {member.instance_id for member in members}
        self._last = {name: last for name, last in self._last.items() if name in known}
        return tuple(found)

    async def _status_of(self, directory: Directory, member: Member) -> Status:
        if member.state != "dead":
            try:
                status = await directory.connection(member.address).status(ANSWER_S)
            except ConnectionLost:
                pass
            else:
                self._last[member.instance_id] = status.instance
                return status
        return Status(instance=self._unanswered(member))

    def _unanswered(self, member: Member) -> InstanceStatus:
        last = self._last.get(member.instance_id)
        if member.left and member.state == "dead":
            return InstanceStatus.of(member, state="left")
        total, free = member.total_blocks, min(member.free_blocks, member.total_blocks)
        return InstanceStatus.of(
            member,
            state="dead" if member.state == "dead" else "unreachable",
            blocks=last.blocks if last else SlotCounts(total=total, free=free, local=total - free),
            borrowed_blocks=last.borrowed_blocks if last else 0,
            running=last.running if last else 0,
            waiting=last.waiting if last else 0,
        )


def remote_share(*requests: RequestStatus) -> float:
    """Of the tokens whose KV lies anywhere, how many lie at creditors; attention reads all of them for each token."""
    spans = [(span, span.instance_id != request.instance_id) for request in requests for span in request.spans]
    total = sum(span.num_tokens for span, _ in spans)
    remote = sum(span.num_tokens for span, is_remote in spans if is_remote)
    return remote / total if total else 0.0


def by_place(statuses: Iterable[Status]) -> list[RequestStatus]:
    """All requests: first those with KV at creditors, then those with KV, then those that wait; else in their order."""
    requests = [request for status in statuses for request in status.requests]
    return sorted(requests, key=lambda request: (not remote_share(request), not request.spans))


class Gains(NamedTuple):
    """Of planned moves, on average: tokens per second more that were expected, and that there were."""

    predicted: float
    achieved: float


def mean_gains(cluster: ClusterState) -> Gains | None:
    """Of the newest plans that are judged; None if none is."""
    judged = [
        (plan.predicted_tokens_per_s, plan.achieved_tokens_per_s)
        for plan in cluster.plans
        if plan.achieved_tokens_per_s is not None
    ]
    return Gains(*(sum(gains) / len(judged) for gains in zip(*judged, strict=True))) if judged else None


def as_dict(statuses: Iterable[Status], cluster: ClusterState | None = None) -> dict[str, Any]:
    """The documented shape of a cluster's status, ready for JSON. cluster: what a gManager says, if one does."""
    instances: list[dict[str, Any]] = []
    requests: list[dict[str, Any]] = []
    for status in statuses:
        instance = msgspec.to_builtins(status.instance)
        instance["counters"] = {one.name: instance["counters"][one.name] for one in COUNTERS if one.in_status}
        instances.append(instance)
        for request in status.requests:
            spans = [msgspec.to_builtins(span) for span in request.spans]
            share = {"remote_share": round(remote_share(request), 4)}
            requests.append(msgspec.to_builtins(request) | share | {"spans": spans})
    return {"instances": instances, "requests": requests, "cluster": None if cluster is None else _cluster(cluster)}


def _cluster(cluster: ClusterState) -> dict[str, Any]:
    shown: dict[str, Any] = msgspec.to_builtins(cluster)
    del shown["type"], shown["retry_after_s"]  # which are about the answer, not the cluster
    shown["debts"] = [msgspec.structs.asdict(debt) for debt in cluster.debts]  # which are arrays in messages
    shown["plans"], shown["runs"] = list(shown["plans"]), list(shown["runs"])
    return shown
