"""The processes of a simulated cluster and the network between them: an event goes in at one, its commands go out."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from random import Random
from typing import cast

from distkv.clock import ManualClock
from distkv.control import commands as c
from distkv.events import ClusterEvent
from distkv.sim.client import Outcome
from distkv.sim.fake_worker import Thread, thread_of
from distkv.sim.gmanagers import GManagers, SimGManager
from distkv.sim.loans import LoanCheck
from distkv.sim.network import Channel, Network
from distkv.sim.node import Node
from distkv.wire.messages import to_rmanager as tr
from distkv.wire.messages import to_worker as tw
from distkv.wire.messages.envelope import PeerAnswer, ToClient, ToWorker

STEP_DELAYS = (0.98, 0.9, 0.5, 0.0)
"""How likely anything else overtakes a step, one of these per cluster: steps take longer than messages."""

Delivery = c.Event | c.GManagerRequested | ToWorker


class Processes:
    """Instances and gManagers; every invariant is checked after every event.

    nodes: the newest incarnation by instance id. outcomes: what clients got, by request. events: what was published,
    and by whom. ended: instances that end by themselves with the next tick.
    """

    def __init__(self, gmanagers: Sequence[str], clock: ManualClock, random: Random) -> None:
        self.nodes: dict[str, Node] = {}
        self.gmanagers = GManagers(gmanagers)
        self.network: Network[Delivery] = Network(random, {"steps": random.choice(STEP_DELAYS)})
        self.outcomes: dict[str, Outcome] = defaultdict(Outcome)
        self.events: list[tuple[str, ClusterEvent]] = []
        self.ended: list[str] = []
        self.loans = LoanCheck(self.nodes)
        self._clock = clock

    # --- in

    def handle(self, name: str, event: c.Event) -> None:
        """An instance's rManager handles an event."""
        now = self._clock.now()
        self._carry_out(name, self.nodes[name].handle(event, now))
        self.loans.validate_of(name, now)

    def handle_gmanager(self, gmanager: SimGManager, event: c.GManagerRequested | c.Tick) -> None:
        """A gManager handles an event."""
        for command in gmanager.handle(event, self._clock.now()):
            match command:
                case c.Answer(route, tr.JoinRefused()):
                    if (node := self._behind(route)) is not None and not node.joined:
                        self.ended.append(node.settings.instance_id)
                case c.Answer(route, tr.Members() | tr.HeartbeatAck() | tr.Creditors() as message):
                    self._answer_of(gmanager, route, message)
                case c.Broadcast():
                    for route in command.routes:
                        self._answer_of(gmanager, route, command.body)
                case c.Publish():
                    self.events.append((gmanager.name, command.event))
                case _:
                    raise AssertionError(f"a gManager never issues {command}")

    def _answer_of(
        self, gmanager: SimGManager, route: bytes, message: tr.Members | tr.HeartbeatAck | tr.Creditors
    ) -> None:
        if (node := self._behind(route)) is not None:
            channel = Channel(gmanager.name, node.settings.instance_id, "answers")
            self._send(channel, c.FromGManager(message))

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
        if isinstance(delivery, c.GManagerRequested):
            self.handle_gmanager(self.gmanagers[channel.target], delivery)
        elif isinstance(delivery, ToWorker):
            self._work(channel.target, cast(Thread, channel.name), delivery)
        else:
            self.handle(channel.target, delivery)
        return True

    def introduce(self, name: str) -> None:
        """An instance presents itself to the gManager that it speaks to."""
        node = self.nodes[name]
        self._carry_out(name, node.rm.introduce(node.member, "sim"))

    def introduce_all(self) -> None:
        """Connections to another gManager stand now."""
        for name, node in self.nodes.items():
            if node.runs:
                self.introduce(name)

    # --- out

    def _work(self, name: str, thread: Thread, message: ToWorker) -> None:
        worker = self.nodes[name].worker
        if isinstance(message, tw.Revoke) and thread == "main":
            # Closed at once; answered by the transfer thread, behind the pulls that came before.
            worker.close(message)
            self._send(Channel(name, name, "transfers"), message)
            return
        for reply in worker.handle(message):
            self._send(Channel(name, name, f"from {thread}"), c.FromWorker(reply))

    def _carry_out(self, name: str, commands: Sequence[c.Command]) -> None:
        for command in commands:
            match command:
                case c.TellWorker():
                    self._send(Channel(name, name, thread_of(command.body)), command.body)
                case c.TellGManager():
                    if (gmanager := self.gmanagers.heard_by_instances) is not None:
                        report = c.GManagerRequested(name, self.nodes[name].route, command.body)
                        self._send(Channel(name, gmanager.name, "requests"), report)
                case c.TellPeer():
                    request = c.PeerRequested(name, self.nodes[name].route, command.body)
                    self._send(Channel(name, command.instance_id, "requests"), request)
                case c.Answer():
                    self._answer(name, command)
                case c.Publish():
                    self.events.append((name, command.event))
                case c.ReleaseGrammar():
                    self.nodes[name].released.append(command.grammar_id)
                case c.Exit():
                    self.nodes[name].exited = command
                    self.ended.append(name)

    def _answer(self, name: str, command: c.Answer) -> None:
        kind, _, who = command.route.decode().partition(":")
        if kind == "client":
            self.outcomes[who].receive(cast(ToClient, command.body))
        elif (node := self._behind(command.route)) is not None:
            answer = c.PeerAnswered(name, cast(PeerAnswer, command.body))
            self._send(Channel(name, node.settings.instance_id, "answers"), answer)

    def _send(self, channel: Channel, delivery: Delivery) -> None:
        """What goes to or comes from the dead is lost."""
        if all(self.nodes[end].alive for end in (channel.source, channel.target) if end in self.nodes):
            self.network.send(channel, delivery)

    def _behind(self, route: bytes) -> Node | None:
        """The process whose connection a route leads to, while it lives."""
        node = self.nodes[route.decode().split(":")[1]]
        return node if node.route == route and node.alive else None

    def _is_read(self, channel: Channel) -> bool:
        """Whether somebody reads at the other end."""
        if channel.target in self.gmanagers:
            return self.gmanagers[channel.target].runs
        node = self.nodes[channel.target]
        return node.runs and not (node.worker.stalled and channel.name == "steps")


def client_route(request_id: str) -> bytes:
    """The route of a request's client."""
    return f"client:{request_id}".encode()
