"""Requests that wait at an instance, or are on their way to it. What they need is counted as they come and go, so that
it can be asked for at any time, however many there are."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from distkv.sim.baselines.batching.served import Served


class Queue:
    """blocks, tokens: rBlocks that all of them need for what is known of them, and tokens of that."""

    def __init__(self, block_tokens: int) -> None:
        self.blocks = self.tokens = 0
        self._block_tokens = block_tokens
        self._on_way: dict[Served, None] = {}
        self._waiting: deque[Served] = deque()

    def __len__(self) -> int:
        """Those that wait."""
        return len(self._waiting)

    def __iter__(self) -> Iterator[Served]:
        """Those that wait, who begins next first."""
        return iter(self._waiting)

    @property
    def num_on_way(self) -> int:
        """Those that have been sent, and have not come yet."""
        return len(self._on_way)

    @property
    def first(self) -> Served | None:
        """Who begins next."""
        return self._waiting[0] if self._waiting else None

    def expect(self, one: Served) -> None:
        """It has been sent here."""
        self._on_way[one] = None
        self._count(one, 1)

    def arrive(self, one: Served) -> bool:
        """It comes, behind the others; false if it was removed meanwhile."""
        if one not in self._on_way:
            return False
        del self._on_way[one]
        self._waiting.append(one)
        return True

    def put_back(self, one: Served) -> None:
        """It had begun, and is to begin anew before all others."""
        self._waiting.appendleft(one)
        self._count(one, 1)

    def pop_first(self) -> Served:
        """It begins."""
        one = self._waiting.popleft()
        self._count(one, -1)
        return one

    def remove(self, one: Served) -> bool:
        """It is not wanted any more; false if it is not here."""
        if one in self._on_way:
            del self._on_way[one]
        elif one in self._waiting:
            self._waiting.remove(one)
        else:
            return False
        self._count(one, -1)
        return True

    def clear(self) -> list[Served]:
        """Nobody waits any more, nor is on the way; returns who did, and was."""
        found = [*self._on_way, *self._waiting]
        self._on_way.clear()
        self._waiting.clear()
        self.blocks = self.tokens = 0
        return found

    def validate(self) -> None:
        """What is counted is what there is."""
        all_ = [*self._on_way, *self._waiting]
        assert self.tokens == sum(one.length for one in all_)
        assert self.blocks == sum(-(-one.length // self._block_tokens) for one in all_)
        assert not any(one.blocks for one in all_)

    def _count(self, one: Served, times: int) -> None:
        self.tokens += times * one.length
        self.blocks += times * -(-one.length // self._block_tokens)
