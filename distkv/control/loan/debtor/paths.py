"""Data paths that failed: who could not read from whom, and how long nothing is borrowed that needs them.

A creditor is reached by two paths: our worker sends queries to it, and its worker pulls blocks from ours. That it
grants says nothing of either. A path that fails is in doubt for a while that doubles each time it fails again; one
success forgives all. Jitter keeps instances that met the same creditor apart.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from random import Random
from typing import NamedTuple

from distkv.control.timers import Timers
from distkv.wire.messages.to_worker import RemoteSpan

FIRST_DOUBT_S = 0.5
LONGEST_DOUBT_S = 60.0
LONGEST_UNUSED_S = 5.0
"""A link that could not be opened, or blocks that could not be pulled, cost nobody a token: such a path is tried again
sooner, for who has nobody else to ask."""
REMEMBER_S = 10.0
"""How long after the last doubt, and twice as long as that was, a path that fails again is an old acquaintance."""
MAX_NAMED = 3
MAX_WHY_CHARACTERS = 200


class Path(NamedTuple):
    """`reader` reads what lies at `source`: by queries, or whole blocks."""

    reader: str
    source: str


@dataclass(slots=True)
class Failure:
    """Of a path that has not worked since. pause_s: how long it is in doubt. held_s: how long memory
    of others was held for nothing, in all. since_s: when it was first found."""

    why: str
    pause_s: float
    held_s: float
    since_s: float
    in_doubt: bool = True


class PathBook:
    """What one instance found out about data paths. One that never failed, and is not linked, is not in it."""

    def __init__(self, entropy: Random) -> None:
        self._entropy = entropy
        self._failures: dict[Path, Failure] = {}
        self._due: Timers[Path] = Timers()
        self._linked: set[Path] = set()

    # --- what happened

    def failed(
        self,
        path: Path,
        why: str,
        now: float,
        took_s: float = 0.0,
        longest_s: float = LONGEST_DOUBT_S,
        held_s: float = 0.0,
    ) -> None:
        """It did not work. What is noticed while it is in doubt is the same failure. took_s: how long that took to
        notice; it is not tried again sooner than after as long. held_s: how long memory of a creditor was held for
        nothing meanwhile; nor sooner than after half of that, in all. longest_s: else for so long it is in doubt at
        most."""
        self._linked.discard(path)
        known = self._failures.get(path)
        if known is not None and known.in_doubt:
            return
        held_s += 0.0 if known is None else known.held_s
        least_s = max(took_s, held_s / 2)
        pause_s = min(LONGEST_DOUBT_S, max(FIRST_DOUBT_S if known is None else 2.0 * known.pause_s, least_s))
        self._failures[path] = Failure(
            why[:MAX_WHY_CHARACTERS], pause_s, held_s, since_s=now if known is None else known.since_s
        )
        self._due.set(path, now + min(max(longest_s, least_s), pause_s) * (0.75 + 0.5 * self._entropy.random()))

    def linked(self, path: Path) -> None:
        """It is open; that forgives nothing."""
        self._linked.add(path)

    def worked(self, path: Path) -> None:
        """It was read over."""
        if self._failures.pop(path, None) is not None:
            self._due.cancel(path)

    def attended(self, reader: str, spans: Iterable[RemoteSpan]) -> None:
        """A step of `reader` read these."""
        if self._failures:
            for span in spans:
                self.worked(Path(reader, span.instance_id))

    def forget(self, instance_id: str) -> None:
        """The instance is gone, or another process: its paths are others."""
        self._linked = {path for path in self._linked if instance_id not in path}
        for path in [path for path in self._failures if instance_id in path]:
            del self._failures[path]
            self._due.cancel(path)

    def tick(self, now: float) -> None:
        """Doubts end, and failures long ago are forgotten."""
        for path in self._due.take_due(now):
            failure = self._failures[path]
            if failure.in_doubt:
                failure.in_doubt = False
                self._due.set(path, now + REMEMBER_S + 2.0 * failure.pause_s)
            else:
                del self._failures[path]

    def next_deadline(self) -> float:
        """When `tick` has something to do."""
        return self._due.next_at()

    # --- questions

    @property
    def num_failed(self) -> int:
        """Paths that failed lately and have not worked since; each keeps one creditor from being asked at most."""
        return len(self._failures)

    def is_linked(self, path: Path) -> bool:
        """Whether it worked when it was last tried."""
        return path in self._linked

    def is_in_doubt(self, path: Path) -> bool:
        """Whether nothing should be entrusted to it now."""
        failure = self._failures.get(path)
        return failure is not None and failure.in_doubt

    def has_failed(self, path: Path) -> bool:
        """Whether it failed lately and has not worked since: better try others first."""
        return path in self._failures

    def doubted_creditors(self, instance_id: str) -> set[str]:
        """Whom this instance cannot borrow from for want of a path: one of the two between them is in doubt."""
        doubted: set[str] = set()
        for path, failure in self._failures.items():
            if failure.in_doubt and instance_id in path:
                doubted.update(path)
        return doubted - {instance_id}

    def failing_since(self, instance_id: str, since_s: float) -> set[str]:
        """Peers of this instance with a path between them that is in doubt, and has not worked from then on, or for
        longer. Others are to be tried again: that shows whether they work now."""
        failing = [
            path
            for path, one in self._failures.items()
            if one.in_doubt and one.since_s <= since_s and instance_id in path
        ]
        return {peer for path in failing for peer in path} - {instance_id}

    def describe(self) -> str:
        """What fails, for the reason that a request is told; empty if nothing does."""
        latest = sorted(self._failures.items(), key=lambda item: -item[1].pause_s)[:MAX_NAMED]
        return "; ".join(f"{path.reader} could not read from {path.source}: {one.why}" for path, one in latest)

    def validate(self) -> None:
        """Every doubt ends."""
        assert all(path in self._due for path in self._failures), "a doubt would never end"
        self._due.validate()
