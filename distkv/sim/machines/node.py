"""One instance of a simulated cluster: an rManager and its worker, in one incarnation."""

from __future__ import annotations

from random import Random
from typing import Generic, Protocol, TypeVar

from distkv.control import commands as c
from distkv.control.blocks import BlockPool
from distkv.control.request.answer.output import NoText
from distkv.control.rmanager.state import MakePool, RManagerSettings
from distkv.control.rmanager.state_machine import RManager
from distkv.sim.machines.checking import is_checked
from distkv.wire.messages.common import DataEndpoint, Member
from distkv.wire.messages.to_rmanager import Members

NO_TEXT = NoText()
"""Keeps nothing, so that all outputs have the same."""


class Worker(Protocol):
    """What stands for the engine worker. alive, frozen: as its process is, which is the instance's here."""

    alive: bool
    frozen: bool


W = TypeVar("W", bound=Worker)


class Node(Generic[W]):
    """alive: false once its process is gone. frozen: stopped, as by SIGSTOP; its connections stay.
    exited: how it ended by itself. route: of its own connections. joined: whether a gManager listed it.
    released: grammars that its requests need no more. deadline: when it next needs a Tick. num_events: that
    it handled."""

    def __init__(
        self,
        settings: RManagerSettings,
        entropy: Random,
        worker: W,
        *,
        host_key: str = "",
        checks: bool = True,
        make_pool: MakePool = BlockPool,
    ) -> None:
        """host_key: those with the same one are on one host. checks: whether its invariants are checked as it goes."""
        self.settings = settings
        self.rm = RManager(settings, lambda *_: NO_TEXT, entropy, make_pool)
        self.worker = worker
        self._checks = checks
        self.exited: c.Exit | None = None
        self.route = f"peer:{settings.instance_id}:{settings.incarnation}".encode()
        self.joined = False
        self.released: list[int] = []
        self.deadline = self.rm.next_deadline()
        self.num_events = 0
        self.member = Member(
            instance_id=settings.instance_id,
            incarnation=settings.incarnation,
            address=f"sim://{settings.instance_id}",
            state="ready",
            block_tokens=settings.block_tokens,
            total_blocks=settings.num_blocks,
            lendable_blocks=settings.lendable_blocks,
            data=DataEndpoint(address=f"sim-data://{settings.instance_id}", host_key=host_key),
        )

    @property
    def alive(self) -> bool:
        return self.worker.alive

    @property
    def frozen(self) -> bool:
        return self.worker.frozen

    @property
    def runs(self) -> bool:
        """Whether it handles events."""
        return self.alive and not self.frozen

    def handle(self, event: c.Event, now: float) -> list[c.Command]:
        """The rManager's answer to an event; every invariant of the instance holds after it, see `is_checked`."""
        if isinstance(event, c.FromGManager) and isinstance(event.message, Members):
            own = self.member.instance_id, self.member.incarnation
            self.joined = self.joined or own in {(m.instance_id, m.incarnation) for m in event.message.members}
        commands = self.rm.handle(event, now)
        self._handled()
        return commands

    def continued(self, decoded: c.Decoded) -> c.Continued:
        """What the rManager has for clients of results that were kept."""
        continued = self.rm.continued(decoded)
        self._handled()
        return continued

    def _handled(self) -> None:
        self.num_events += 1
        if self._checks and is_checked(self.num_events, len(self.rm.members)):
            self.rm.validate()
        self.deadline = self.rm.next_deadline()

    def validate_idle(self) -> None:
        """Nothing runs: every slot is free, nothing is lent or owed."""
        pool = self.rm.state.pool
        name = self.settings.instance_id
        assert pool.num_free == pool.num_slots, f"{name}: {pool.num_free} of {pool.num_slots} slots are free"
        assert not self.rm.state.loans.loans, f"{name} still lends"
        assert not self.rm.state.all_debts(), f"{name} still owes"
