"""The gManagers of a simulated cluster. Instances speak to the first that is there."""

from __future__ import annotations

from collections.abc import Sequence

from distkv.config import AdviceSettings, MembershipSettings
from distkv.control import commands as c
from distkv.control.cluster.gmanager import GManager
from distkv.sim.machines.checking import is_checked


class SimGManager:
    """One gManager: `machine` is None while its process is gone. stalled: it stands still; its connections stay.
    advice: settings of its next process."""

    def __init__(
        self, name: str, number: int, advice: AdviceSettings, membership: MembershipSettings, *, checks: bool
    ) -> None:
        """number: tells its incarnations from those of the others."""
        self.name = name
        self.advice = advice
        self._membership, self._checks = membership, checks
        self._incarnation = 1000 * (number + 1)
        self.machine: GManager | None = None
        self.stalled = False
        self._version = 0
        self._num_events = 0
        self.start()

    @property
    def runs(self) -> bool:
        """Whether it handles events."""
        return self.machine is not None and not self.stalled

    def is_due(self, now: float) -> bool:
        """Whether it needs a Tick."""
        return self.machine is not None and not self.stalled and self.machine.next_deadline() <= now

    def start(self) -> None:
        """A process that knows nothing."""
        self._incarnation += 1
        self.machine = GManager(self._membership, self.advice, incarnation=self._incarnation)
        self.stalled, self._version = False, 0

    def kill(self) -> None:
        """The process ends."""
        self.machine, self.stalled = None, False

    def handle(self, event: c.GManagerRequested | c.Tick, now: float) -> list[c.GManagerCommand]:
        """The gManager's answer to an event; every invariant of it holds after the event, see `is_checked`."""
        assert self.machine is not None
        commands = self.machine.handle(event, now)
        self._num_events += 1
        if self._checks and is_checked(self._num_events, len(self.machine.ledger.entries)):
            self.machine.validate()
        assert self.machine.version >= self._version, "the version of the member list went back"
        self._version = self.machine.version
        return commands


class GManagers:
    """All of them by name, in the order in which instances try them."""

    def __init__(
        self,
        names: Sequence[str],
        advice: AdviceSettings,
        membership: MembershipSettings | None = None,
        *,
        checks: bool = True,
    ) -> None:
        """checks: whether their invariants are checked as they go."""
        settings = membership or MembershipSettings()
        self.by_name = {
            name: SimGManager(name, number, advice, settings, checks=checks) for number, name in enumerate(names)
        }

    def __contains__(self, name: str) -> bool:
        return name in self.by_name

    def __getitem__(self, name: str) -> SimGManager:
        return self.by_name[name]

    @property
    def heard_by_instances(self) -> SimGManager | None:
        """The first whose process is there, stalled or not: a connection to it stands."""
        return next((one for one in self.by_name.values() if one.machine is not None), None)
