"""The one network of a simulated cluster: channels that keep their order, and overtake each other as drawn."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from random import Random
from typing import Generic, NamedTuple, TypeVar

M = TypeVar("M")


class Channel(NamedTuple):
    """From one process to another, or between a process and one of its worker's threads; `name` is for those that
    have the same ends."""

    source: str
    target: str
    name: str


class Network(Generic[M]):
    """Holds what was sent and not yet delivered.

    Promises: what is sent by one channel arrives in order and once, or is lost by `lose`. Which channel delivers next
    is drawn; one named in `odds` is passed over with that probability as long as another can deliver.
    """

    def __init__(self, random: Random, odds: dict[str, float]) -> None:
        self._random = random
        self._odds = odds
        self._queues: dict[Channel, deque[M]] = {}

    def send(self, channel: Channel, message: M) -> None:
        """Put a message on its way."""
        self._queues.setdefault(channel, deque()).append(message)

    def draw(self, is_reading: Callable[[str], bool]) -> tuple[Channel, M] | None:
        """The next message to arrive at one of those that read; None if there is none."""
        ready = sorted(channel for channel in self._queues if is_reading(channel.target))
        while ready:
            channel = self._random.choice(ready)
            if len(ready) > 1 and self._random.random() < self._odds.get(channel.name, 0.0):
                ready.remove(channel)
                continue
            queue = self._queues[channel]
            message = queue.popleft()
            if not queue:
                del self._queues[channel]
            return channel, message
        return None

    def lose(self, is_lost: Callable[[Channel], bool]) -> None:
        """Drop what is on its way by these channels."""
        for channel in [channel for channel in self._queues if is_lost(channel)]:
            del self._queues[channel]

    def on_its_way(self) -> Iterator[tuple[Channel, M]]:
        """Everything not yet delivered, channel by channel."""
        for channel, queue in self._queues.items():
            for message in queue:
                yield channel, message
