"""What happened to the memory of requests, newest last, so that somebody can be told why it lies where it does.

A request's history is dropped with it, but those of the newest ended ones are kept. Each is bounded, and what happens
again and again is one entry, so that neither a long request nor many of them cost more than that.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection
from dataclasses import dataclass, field
from itertools import chain
from typing import Literal

from distkv.wire.messages.to_client import HistoryEntry

MAX_ENTRIES = 32
"""Of one request; the oldest are left out."""
MAX_WHY = 200
MAX_ENDED = 64
"""Ended requests that are remembered."""

Happened = Literal[
    "waits",
    "begins",
    "borrowed",
    "left",
    "came_home",
    "reclaimed",
    "lost",
    "preempted",
    "not_moved",
    "planned",
    "dropped",
    "ended",
]

ABSOLUTE = ("begins", "reclaimed")
"""What happens again is about the same rBlocks."""


@dataclass(slots=True)
class Entry:
    """Something that happened, `times` over and at last at `at`, to so many rBlocks in all, or the last time if it is
    ABSOLUTE."""

    happened: Happened
    at: float
    instance_id: str
    why: str
    blocks: int
    times: int = 1


@dataclass(slots=True)
class History:
    """Of one request. since: when it came; left_out: how many entries are forgotten."""

    since: float
    prompt_tokens: int
    entries: list[Entry] = field(default_factory=list)
    left_out: int = 0

    def note(self, happened: Happened, at: float, instance_id: str, why: str, blocks: int) -> None:
        """It happened just now. The same, of the same for the same reason, is counted with the last one."""
        last = self.entries[-1] if self.entries else None
        if last is not None and (last.happened, last.instance_id, last.why) == (happened, instance_id, why):
            last.at, last.times = at, last.times + 1
            last.blocks = blocks if happened in ABSOLUTE else last.blocks + blocks
            return
        if len(self.entries) == MAX_ENTRIES:
            del self.entries[0]
            self.left_out += 1
        self.entries.append(Entry(happened, at, instance_id, why, blocks))

    def told(self, now: float) -> tuple[HistoryEntry, ...]:
        """As a message has it."""
        return tuple(
            HistoryEntry(
                happened=one.happened,
                ago_s=max(0.0, now - one.at),
                instance_id=one.instance_id,
                why=one.why,
                num_blocks=one.blocks,
                times=one.times,
            )
            for one in self.entries
        )


class Histories:
    """Of the requests of one instance. now: of the event that is being handled; whoever handles one sets it."""

    def __init__(self) -> None:
        self.now = 0.0
        self._live: dict[str, History] = {}
        self._ended: OrderedDict[str, History] = OrderedDict()

    def begin(self, request_id: str, prompt_tokens: int) -> None:
        """A request was accepted."""
        self._live[request_id] = History(self.now, prompt_tokens)

    def note(
        self, request_id: str, happened: Happened, *, instance_id: str = "", why: str = "", blocks: int = 0
    ) -> None:
        """Something happened to a request; nothing is noted of one that has ended."""
        if (history := self._live.get(request_id)) is not None:
            history.note(happened, self.now, instance_id, why[:MAX_WHY], blocks)

    def end(self, request_id: str, why: str) -> None:
        """It has ended."""
        history = self._live.pop(request_id)
        history.note("ended", self.now, "", why[:MAX_WHY], 0)
        self._ended.pop(request_id, None)
        self._ended[request_id] = history
        if len(self._ended) > MAX_ENDED:
            self._ended.popitem(last=False)

    def find(self, request_id: str) -> History | None:
        """Of a live request, or one that ended lately."""
        return self._live.get(request_id) or self._ended.get(request_id)

    def named(self, name: str) -> list[str]:
        """The request of this name and those that were made of it: choices, `name-...`, and what was sent again,
        `name~...`. Live ones first, then the newest that ended. Looks at all."""
        made = f"{name}-", f"{name}~"
        return [one for one in chain(self._live, reversed(self._ended)) if one == name or one.startswith(made)]

    def validate(self, live: Collection[str]) -> None:
        """There is none of a request that has ended and is not among the newest; all are bounded."""
        assert self._live.keys() <= set(live), "histories of others than the live requests"
        assert len(self._ended) <= MAX_ENDED
        assert all(len(one.entries) <= MAX_ENTRIES for one in chain(self._live.values(), self._ended.values()))
