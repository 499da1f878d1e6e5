"""The status of a whole cluster: every member is queried, and one that does not answer keeps its last numbers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

import msgspec

from distkv.client.directory import ANSWER_S, Directory
from distkv.client.events import ConnectionLost
from distkv.client.owned_tasks import gather_limited
from distkv.wire.messages.common import Member
from distkv.wire.messages.counters import COUNTERS
from distkv.wire.messages.to_client import InstanceStatus, SlotCounts, Status

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


def as_dict(statuses: Iterable[Status]) -> dict[str, Any]:
    """The documented shape of a cluster's status, ready for JSON."""
    instances: list[dict[str, Any]] = []
    requests: list[dict[str, Any]] = []
    for status in statuses:
        instance = msgspec.to_builtins(status.instance)
        instance["counters"] = {one.name: instance["counters"][one.name] for one in COUNTERS if one.in_status}
        instances.append(instance)
        for request in status.requests:
            spans = [msgspec.to_builtins(span) for span in request.spans]
            requests.append(msgspec.to_builtins(request) | {"spans": spans})
    return {"instances": instances, "requests": requests}
