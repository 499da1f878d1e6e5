"""Results of quiet decode that are kept, to be handed over together before anything else happens to their instance."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from distkv.control import commands as c
from distkv.control.rmanager.quiet import QuietDecode
from distkv.sim.machines.node import Node
from distkv.sim.timed.agenda import Agenda
from distkv.sim.timed.clients import Clients
from distkv.sim.timed.engine.engine import Engine
from distkv.wire.messages.from_worker import StepResult


class FastForward:
    """Of all instances. num_results, num_kept: of steps, and how many of them were kept.

    pipe_s: how long a result is on its way. hear: takes one that has come.
    """

    def __init__(
        self, agenda: Agenda, clients: Clients, pipe_s: float, hear: Callable[[Node[Engine], StepResult], None]
    ) -> None:
        self._agenda, self._clients, self._pipe_s, self._hear = agenda, clients, pipe_s, hear
        self._quiet: dict[str, tuple[Node[Engine], QuietDecode]] = {}
        self.num_results = self.num_kept = 0

    @property
    def behind(self) -> list[str]:
        """The instances of which something is kept."""
        return list(self._quiet)

    def takes(self, node: Node[Engine], result: StepResult) -> bool:
        """Whether a result that has come is kept; its worker goes on then."""
        self.num_results += 1
        name = node.settings.instance_id
        quiet = self._quiet[name][1] if name in self._quiet else node.rm.quiet.begin(node.deadline)
        if quiet is None or not quiet.takes(result, self._agenda.now()):
            return False
        self._quiet[name] = node, quiet
        self.num_kept += 1
        node.worker.repeat()
        if quiet.takes_alike:
            node.worker.repeat_alone(quiet.room, quiet.until, self._pipe_s, partial(self._keep, node, quiet))
        return True

    def catch_up(self, name: str) -> None:
        """Hand over what is kept of an instance."""
        if name not in self._quiet:
            return
        self._quiet[name][0].worker.settle()
        node, quiet = self._quiet.pop(name)
        continued = node.continued(c.Decoded(tuple(quiet.results), tuple(quiet.times)))
        self._clients.receive_tokens(name, continued.request_ids, np.array(quiet.times))

    def _keep(
        self, node: Node[Engine], quiet: QuietDecode, results: Sequence[StepResult], times: Sequence[float]
    ) -> None:
        """Results that a worker had known before they were due; the last may still be on its way."""
        if times[-1] >= self._agenda.now():
            self._agenda.at(times[-1], partial(self._hear, node, results[-1]))
            results, times = results[:-1], times[:-1]
        quiet.keep(results, times)
        self.num_results += len(results)
        self.num_kept += len(results)
