"""Ready instances of each host by how full their pools are, and hosts by how far the fullest is ahead of the mean.

A change of one instance costs O(log n) comparisons; a question looks at what it returns.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import NamedTuple

from distkv.control.cluster.policy.interface import InstanceView, Uneven

PARTS = 1000
"""Of a pool: fullness is rounded down to these, so that an rBlock more or less changes nothing."""


class Fullness(NamedTuple):
    """How many parts of its pool an instance has in use, and on which host."""

    host_key: str
    parts: int


def fullness_of(view: InstanceView) -> Fullness | None:
    """None of one that is not ready, or of which nobody knows on which host it is."""
    if view.state != "ready" or not view.total_blocks or not view.host_key:
        return None
    return Fullness(view.host_key, PARTS * (view.total_blocks - view.free_blocks) // view.total_blocks)


@dataclass(slots=True)
class _Host:
    filed: list[tuple[int, str]] = field(default_factory=list)
    sum_parts: int = 0

    @property
    def mean(self) -> float:
        return self.sum_parts / len(self.filed) / PARTS

    def uneven(self, host_key: str) -> Uneven:
        return Uneven(self.mean - self.filed[-1][0] / PARTS, host_key)


class FullnessIndex:
    """The `Evenness` that policies see."""

    def __init__(self) -> None:
        self._fullness: dict[str, Fullness] = {}
        self._hosts: dict[str, _Host] = {}
        self._uneven: list[Uneven] = []

    def put(self, name: str, fullness: Fullness | None) -> None:
        """An instance is as full as this from now on; None: it counts no more."""
        before = self._fullness.get(name)
        if fullness == before:
            return
        if before is not None:
            del self._fullness[name]
            self._change(before, name, is_there=False)
        if fullness is not None:
            self._fullness[name] = fullness
            self._change(fullness, name, is_there=True)

    def uneven(self, after: Uneven | None) -> Iterator[Uneven]:
        first = 0 if after is None else bisect_right(self._uneven, after)
        return islice(self._uneven, first, None)

    def mean(self, host_key: str) -> float:
        return self._hosts[host_key].mean

    def emptiest(self, host_key: str) -> Iterator[str]:
        return (name for _, name in self._hosts[host_key].filed)

    def fullest(self, host_key: str) -> str:
        return self._hosts[host_key].filed[-1][1]

    def _change(self, fullness: Fullness, name: str, *, is_there: bool) -> None:
        key = fullness.host_key
        host = self._hosts.setdefault(key, _Host())
        if len(host.filed) > 1:
            del self._uneven[bisect_left(self._uneven, host.uneven(key))]
        if is_there:
            insort(host.filed, (fullness.parts, name))
            host.sum_parts += fullness.parts
        else:
            del host.filed[bisect_left(host.filed, (fullness.parts, name))]
            host.sum_parts -= fullness.parts
        if len(host.filed) > 1:
            insort(self._uneven, host.uneven(key))
        elif not host.filed:
            del self._hosts[key]

    def validate(self, views: Iterator[InstanceView]) -> None:
        """Each is filed as its view says, and nothing else is."""
        again = FullnessIndex()
        for view in views:
            again.put(view.instance_id, fullness_of(view))
        assert again._fullness == self._fullness, "filed as another fullness"
        assert again._hosts == self._hosts, "misfiled on a host"
        assert again._uneven == self._uneven, "hosts are out of order"
