"""The processes of a simulated cluster, as state machines: an event goes in at one, its commands go out to what is
around them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic, Protocol, cast

from distkv.clock import Clock
from distkv.config import AdviceSettings, MembershipSettings
from distkv.control import commands as c
from distkv.events import ClusterEvent
from distkv.sim.machines.channel import Channel, thread_of
from distkv.sim.machines.gmanagers import GManagers, SimGManager
from distkv.sim.machines.loans import LoanCheck
from distkv.sim.machines.node import Node, W
from distkv.wire.messages import to_client as tc
from distkv.wire.messages import to_rmanager as tr
from distkv.wire.messages.envelope import PeerAnswer, ToClient, ToWorker

Delivery = c.Event | c.GManagerRequested | ToWorker
"""What travels by a channel: an event of who gets it, or a command of a worker."""


class Surroundings(Protocol):
    """What carries messages and computes, and who hears of it."""

    def send(self, channel: Channel, delivery: Delivery) -> None:
        """Put a message on its way; it comes in by `Processes.receive`, or to the worker."""
        ...

    def tell_client(self, source: str, client: str, body: ToClient) -> None:
        """An instance or a gManager answers a client."""
        ...

    def publish(self, source: str, event: ClusterEvent) -> None:
        """What an instance or a gManager makes known."""
        ...

    def end(self, name: str) -> None:
        """An instance ends by itself."""
        ...


class Processes(Generic[W]):
    """Instances and gManagers. nodes: the newest incarnation by instance id."""

    def __init__(
        self,
        gmanagers: Sequence[str],
        clock: Clock,
        around: Surroundings,
        advice: AdviceSettings,
        membership: MembershipSettings | None = None,
        *,
        checks: bool = True,
    ) -> None:
        """checks: whether every invariant of gManagers, and what must hold between instances, is checked after every
        event; a node knows by itself."""
        self.nodes: dict[str, Node[W]] = {}
        self.gmanagers = GManagers(gmanagers, advice, membership, checks=checks)
        self.loans = LoanCheck(self.nodes)
        self._clock = clock
        self._around = around
        self._checks = checks

    # --- in

    def handle(self, name: str, event: c.Event) -> None:
        """An instance's rManager handles an event."""
        now = self._clock.now()
        self._carry_out(name, self.nodes[name].handle(event, now))
        if self._checks:
            self.loans.validate_of(name, now)

    def handle_gmanager(self, gmanager: SimGManager, event: c.GManagerRequested | c.Tick) -> None:
        """A gManager handles an event."""
        for command in gmanager.handle(event, self._clock.now()):
            match command:
                case c.Answer(route, tr.JoinRefused()):
                    if (node := self._behind(route)) is not None and not node.joined:
                        self._around.end(node.settings.instance_id)
                case c.Answer(route, message) if isinstance(message, c.ByGManager):
                    self._answer_of(gmanager, route, message)
                case c.Answer(route, tc.Located() as located):
                    self._around.tell_client(gmanager.name, _end_of(route), located)
                case c.Broadcast():
                    for route in command.routes:
                        self._answer_of(gmanager, route, command.body)
                case c.Publish():
                    self._around.publish(gmanager.name, command.event)
                case _:
                    raise AssertionError(f"a gManager never issues {command}")

    def _answer_of(self, gmanager: SimGManager, route: bytes, message: c.ByGManager) -> None:
        if (node := self._behind(route)) is not None:
            channel = Channel(gmanager.name, node.settings.instance_id, "answers")
            self._send(channel, c.FromGManager(message))

    def receive(self, target: str, delivery: c.Event | c.GManagerRequested) -> None:
        """What was sent has arrived."""
        if isinstance(delivery, c.GManagerRequested):
            self.handle_gmanager(self.gmanagers[target], delivery)
        else:
            self.handle(target, delivery)

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

    def _carry_out(self, name: str, commands: Sequence[c.Command]) -> None:
        for command in commands:
            match command:
                case c.TellWorker():
                    self._send(Channel(name, name, thread_of(command.body)), command.body)
                case c.Answer():
                    self._answer(name, command)
                case c.TellGManager():
                    if (gmanager := self.gmanagers.heard_by_instances) is not None:
                        report = c.GManagerRequested(name, self.nodes[name].route, command.body)
                        self._send(Channel(name, gmanager.name, "requests"), report)
                case c.TellPeer():
                    request = c.PeerRequested(name, self.nodes[name].route, command.body)
                    self._send(Channel(name, command.instance_id, "requests"), request)
                case c.Publish():
                    self._around.publish(name, command.event)
                case c.ReleaseGrammar():
                    self.nodes[name].released.append(command.grammar_id)
                case c.Exit():
                    self.nodes[name].exited = command
                    self._around.end(name)

    def _answer(self, name: str, command: c.Answer) -> None:
        if command.route.startswith(b"client:"):
            self._around.tell_client(name, _end_of(command.route), cast(ToClient, command.body))
        elif (node := self._behind(command.route)) is not None:
            answer = c.PeerAnswered(name, cast(PeerAnswer, command.body))
            self._send(Channel(name, node.settings.instance_id, "answers"), answer)

    def _send(self, channel: Channel, delivery: Delivery) -> None:
        """What goes to or comes from the dead is lost."""
        if all(self.nodes[end].alive for end in (channel.source, channel.target) if end in self.nodes):
            self._around.send(channel, delivery)

    def _behind(self, route: bytes) -> Node[W] | None:
        """The process whose connection a route leads to, while it lives."""
        node = self.nodes[route.decode().split(":")[1]]
        return node if node.route == route and node.alive else None


def client_route(client: str) -> bytes:
    """The route of a client."""
    return f"client:{client}".encode()


def _end_of(route: bytes) -> str:
    """The client that a route leads to."""
    return route.decode().partition(":")[2]
