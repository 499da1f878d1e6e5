"""What happens to the processes of a simulated cluster: at given times, and at random."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from random import Random
from typing import Protocol, assert_never

from distkv.sim.spec import GMANAGER, Fault, Kill, Restart, SimSpec, Slow
from distkv.sim.timed.agenda import Agenda


class Victims(Protocol):
    """The processes. What is dead already is not killed, what lives is not started."""

    def kill(self, name: str) -> None:
        """The processes of an instance die."""
        ...

    def restart(self, name: str) -> None:
        """An instance is started again."""
        ...

    def slow_down(self, name: str, factor: float) -> None:
        """An instance takes so many times as long; 1 is as ever."""
        ...

    def kill_gmanager(self) -> None:
        """Its process dies."""
        ...

    def restart_gmanager(self) -> None:
        """It is started again."""
        ...

    def living(self) -> Sequence[str]:
        """The instances that are not dead."""
        ...


def schedule(spec: SimSpec, agenda: Agenda, victims: Victims, begin_s: float) -> None:
    """Have happen what the spec says, counted from `begin_s`."""
    for fault in spec.faults:
        _schedule(fault, agenda, victims, begin_s)
    if spec.failures_per_hour:
        _Failures(spec, agenda, victims).wait(begin_s)


def _schedule(fault: Fault, agenda: Agenda, victims: Victims, begin_s: float) -> None:
    name, at_s = fault.instance, begin_s + fault.at_s
    match fault:
        case Kill():
            agenda.at(at_s, victims.kill_gmanager if name == GMANAGER else partial(victims.kill, name))
        case Restart():
            agenda.at(at_s, victims.restart_gmanager if name == GMANAGER else partial(victims.restart, name))
        case Slow():
            agenda.at(at_s, partial(victims.slow_down, name, fault.factor))
            agenda.at(begin_s + fault.until_s, partial(victims.slow_down, name, 1.0))
        case _:
            assert_never(fault)


class _Failures:
    """One after the other, for as long as anything is simulated: pauses are exponential, any that lives may be hit."""

    def __init__(self, spec: SimSpec, agenda: Agenda, victims: Victims) -> None:
        self._random = Random(f"failures of {spec.seed}")
        self._per_s, self._repair_s = spec.failures_per_hour / 3600, spec.repair_s
        self._agenda, self._victims = agenda, victims

    def wait(self, from_s: float) -> None:
        """Until the next one."""
        self._agenda.at(from_s + self._random.expovariate(self._per_s), self._fail)

    def _fail(self) -> None:
        now = self._agenda.now()
        if living := self._victims.living():
            name = self._random.choice(living)
            self._victims.kill(name)
            self._agenda.at(now + self._repair_s, partial(self._victims.restart, name))
        self.wait(now)
