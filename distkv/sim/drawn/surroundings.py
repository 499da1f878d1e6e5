"""What is around the state machines under a manual clock: messages arrive in an order that is drawn, workers compute
at once, clients only listen."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from random import Random
from typing import cast

from distkv.clock import ManualClock
from distkv.config import AdviceSettings
from distkv.control import commands as c
from distkv.events import ClusterEvent
from distkv.sim.drawn.client import Outcome
from distkv.sim.drawn.fake_worker import FakeWorker
from distkv.sim.drawn.network import Network
from distkv.sim.machines.channel import Channel, Thread
from distkv.sim.machines.processes import Delivery, Processes
from distkv.wire.messages import to_worker as tw
from distkv.wire.messages.envelope import ToClient, ToWorker
from distkv.wire.messages.to_client import RequestEnded

STEP_DELAYS = (0.98, 0.9, 0.5, 0.0)
"""How likely anything else overtakes a step, one of these per cluster: steps take longer than messages."""


class Drawn:
    """The processes of a cluster, with fake workers and one network; every invariant is checked after every event.

    outcomes: what clients got, by request. events: what was published, and by whom. ended: instances that end by
    themselves with the next tick. moved: requests that clients are to send to another instance, and which.
    """

    def __init__(self, gmanagers: Sequence[str], clock: ManualClock, random: Random, advice: AdviceSettings) -> None:
        self.processes: Processes[FakeWorker] = Processes(gmanagers, clock, self, advice)
        self.network: Network[Delivery] = Network(random, {"steps": random.choice(STEP_DELAYS)})
        self.outcomes: dict[str, Outcome] = defaultdict(Outcome)
        self.events: list[tuple[str, ClusterEvent]] = []
        self.ended: list[str] = []
        self.moved: list[tuple[str, str]] = []

    # --- what the processes say

    def send(self, channel: Channel, delivery: Delivery) -> None:
        """Put a message on its way."""
        self.network.send(channel, delivery)

    def tell_client(self, source: str, client: str, body: ToClient) -> None:
        """The client of a request, which is called as that, hears something."""
        if isinstance(body, RequestEnded) and body.go_to:
            self.moved.append((client, body.go_to))
        else:
            self.outcomes[client].receive(body)

    def publish(self, source: str, event: ClusterEvent) -> None:
        """Remember it."""
        self.events.append((source, event))

    def end(self, name: str) -> None:
        """An instance ends with the next tick."""
        self.ended.append(name)

    # --- what arrives

    def deliver(self, target: str = "") -> bool:
        """Let one message arrive, at a certain process if one is named; false if none can."""
        return self._deliver(lambda channel: target in ("", channel.target))

    def deliver_all_of(self, source: str) -> None:
        """Let arrive what a process sent that ends in good order, as far as somebody reads it."""
        while self._deliver(lambda channel: channel.source == source and not channel.is_within):
            pass

    def _deliver(self, may_arrive: Callable[[Channel], bool]) -> bool:
        drawn = self.network.draw(lambda channel: may_arrive(channel) and self._is_read(channel))
        if drawn is None:
            return False
        channel, delivery = drawn
        if isinstance(delivery, ToWorker):
            self._work(channel.target, cast(Thread, channel.name), delivery)
        else:
            self.processes.receive(channel.target, delivery)
        return True

    def _work(self, name: str, thread: Thread, message: ToWorker) -> None:
        node = self.processes.nodes[name]
        if isinstance(message, tw.Revoke) and thread == "main":
            # Closed at once; answered by the transfer thread, behind the pulls that came before.
            node.worker.close(message)
            if node.alive:
                self.send(Channel(name, name, "transfers"), message)
            return
        for reply in node.worker.handle(message):
            if node.alive:
                self.send(Channel(name, name, f"from {thread}"), c.FromWorker(reply))

    def _is_read(self, channel: Channel) -> bool:
        """Whether somebody reads at the other end."""
        if channel.target in self.processes.gmanagers:
            return self.processes.gmanagers[channel.target].runs
        node = self.processes.nodes[channel.target]
        return node.runs and not (node.worker.stalled and channel.name == "steps")
