"""A gManager under test, and the instances that speak to it."""

from __future__ import annotations

from typing import Any, TypeVar

from distkv import events
from distkv.clock import ManualClock
from distkv.config import MembershipSettings
from distkv.control.cluster.gmanager import GManager
from distkv.control.cluster.member_feed import COALESCE_S
from distkv.control.commands import Answer, Broadcast, GManagerCommand, GManagerRequested, Publish, Tick
from distkv.wire.messages import to_gmanager as tg
from distkv.wire.messages.envelope import ToGManager
from distkv.wire.messages.to_client import Located
from distkv.wire.messages.to_rmanager import Creditors
from tests.control.parts import make_member

M = TypeVar("M")
E = TypeVar("E", bound=events.ClusterEvent)


class Managed:
    """A gManager, and the instances that speak to it by routes of their own names."""

    def __init__(self) -> None:
        self.clock = ManualClock(100.0)
        self.gm = GManager(MembershipSettings(heartbeat_s=0.5, dead_after_s=4.0))
        self.seqs: dict[str, int] = {}
        self.commands: list[GManagerCommand] = []

    def hear(self, sender: str, body: ToGManager) -> list[GManagerCommand]:
        self.commands = self.gm.handle(GManagerRequested(sender, sender.encode(), body), self.clock.now())
        self.gm.validate()
        return self.commands

    def tick(self, seconds: float = 0.0) -> list[GManagerCommand]:
        """Time goes by, and the gManager listens: it ticks when it wants to, and at the end."""
        until = self.clock.now() + seconds
        commands = []
        while (at := self.gm.next_deadline()) < until:
            commands += self.gm.handle(Tick(), self.clock.advance(max(0.0, at - self.clock.now())))
            self.gm.validate()
        commands += self.gm.handle(Tick(), self.clock.advance(until - self.clock.now()))
        self.gm.validate()
        self.commands = commands
        return commands

    def stall(self, seconds: float) -> None:
        """Time goes by, and the gManager does nothing."""
        self.clock.advance(seconds)

    def join(
        self,
        name: str,
        compat: str = "model",
        serves: str = "",
        swaps: bool = True,
        belongs: bool = False,
        **fields: Any,
    ) -> list[GManagerCommand]:
        """It joins, and what is to be sent to all is sent."""
        fields = {"total_blocks": 16} | fields
        member = make_member(name, **fields)
        joined = self.hear(name, tg.Join(member=member, compat=compat, serves=serves, swaps=swaps, belongs=belongs))
        self.commands = joined + self.tick(COALESCE_S)
        return self.commands

    def beat(self, name: str, full: bool = True, incarnation: int = 1, **fields: Any) -> list[GManagerCommand]:
        self.seqs[name] = self.seqs.get(name, 0) + 1
        fields = {"total_blocks": 16, "free_blocks": 8, "lendable_blocks": 7} | fields
        return self.hear(
            name,
            tg.Heartbeat(instance_id=name, incarnation=incarnation, seq=self.seqs[name], base=0, full=full, **fields),
        )

    def answers(self, kind: type[M], route: str | None = None) -> list[M]:
        """What was sent, to all or along one route, broadcasts included."""
        sent = [
            (one, command.body)
            for command in self.commands
            if isinstance(command, Answer | Broadcast)
            for one in (command.routes if isinstance(command, Broadcast) else (command.route,))
        ]
        return [body for one, body in sent if isinstance(body, kind) and route in (None, one.decode())]

    def events(self, kind: type[E]) -> list[E]:
        published = [command.event for command in self.commands if isinstance(command, Publish)]
        return [event for event in published if isinstance(event, kind)]

    def states(self) -> dict[str, str]:
        return {member.instance_id: member.state for member in self.gm.members()}

    def locate(self, num_tokens: int = 4, exclude: tuple[str, ...] = ()) -> Located:
        self.hear("client", tg.Locate(request_id="r", num_tokens=num_tokens, exclude=exclude))
        (located,) = self.answers(Located, "client")
        return located

    def candidates(self, asker: str = "a", **fields: Any) -> list[tuple[str, int]]:
        fields = {"num_blocks": 3} | fields
        self.hear(asker, tg.BorrowQuery(instance_id=asker, borrow_id="b", **fields))
        (creditors,) = self.answers(Creditors, asker)
        assert creditors.borrow_id == "b"
        return [(candidate.instance_id, candidate.free_blocks) for candidate in creditors.candidates]
