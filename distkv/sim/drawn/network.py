"""The one network of a simulated cluster: channels that keep their order, and overtake each other as drawn."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from random import Random
from typing import Generic, TypeVar

from distkv.sim.machines.channel import Channel

M = TypeVar("M")


class Network(Generic[M]):
    """Holds what was sent and not yet delivered.

    Promises: what is sent by one channel arrives in order and once, or is lost by `lose`. Which channel delivers next
    is drawn; one named in `odds` is passed over with that probability as long as another can deliver.

    loss, duplication: how likely a message between instances never arrives, and arrives once more behind those sent
    by the same channel before it does.
    """

    def __init__(self, random: Random, odds: dict[str, float]) -> None:
        self._random = random
        self._odds = odds
        self._queues: dict[Channel, deque[M]] = {}
        self.loss = self.duplication = 0.0

    def send(self, channel: Channel, message: M) -> None:
        """Put a message on its way."""
        if not channel.is_within and self._happens(self.loss):
            return
        self._queues.setdefault(channel, deque()).append(message)

    def draw(self, is_reading: Callable[[Channel], bool]) -> tuple[Channel, M] | None:
        """The next message to arrive by one of the channels that are read; None if there is none."""
        ready = sorted(channel for channel in self._queues if is_reading(channel))
        while ready:
            channel = self._random.choice(ready)
            if len(ready) > 1 and self._random.random() < self._odds.get(channel.name, 0.0):
                ready.remove(channel)
                continue
            return channel, self._take(channel)
        return None

    def _take(self, channel: Channel) -> M:
        queue = self._queues[channel]
        message = queue.popleft()
        if not channel.is_within and self._happens(self.duplication):
            queue.append(message)
        if not queue:
            del self._queues[channel]
        return message

    def _happens(self, probability: float) -> bool:
        return probability > 0.0 and self._random.random() < probability

    def lose(self, is_lost: Callable[[Channel], bool]) -> None:
        """Drop what is on its way by these channels."""
        for channel in [channel for channel in self._queues if is_lost(channel)]:
            del self._queues[channel]

    def on_its_way(self) -> Iterator[tuple[Channel, M]]:
        """Everything not yet delivered, channel by channel."""
        for channel, queue in self._queues.items():
            for message in queue:
                yield channel, message
