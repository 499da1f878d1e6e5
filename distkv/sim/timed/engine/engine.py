"""One instance's worker: it carries out what its rManager wants, and serves debtors."""

from __future__ import annotations

import copy
from collections.abc import Callable

from distkv.sim.timed.engine.around import Around
from distkv.sim.timed.engine.own_steps import OwnSteps
from distkv.sim.timed.engine.serving import Server, SpanBook
from distkv.sim.timed.engine.step_work import Ask, StepTimes
from distkv.sim.timed.engine.stretch import Keep
from distkv.sim.timed.engine.transfers import Transfers
from distkv.wire.messages import from_worker as fw
from distkv.wire.messages import to_worker as tw
from distkv.wire.messages.counters import Counters
from distkv.wire.messages.envelope import ToWorker

VOCAB = 2
NO_LINK_S = 1.0
"""After so long it is said that a peer cannot be linked to."""
Reply = fw.StepResult | fw.Checksummed | fw.Pulled | fw.Linked | fw.Revoked


class Engine:
    """One instance's worker. reply: takes what it answers."""

    def __init__(
        self,
        instance_id: str,
        incarnation: int,
        host: str,
        times: StepTimes,
        around: Around,
        reply: Callable[[Reply], None],
    ) -> None:
        self.instance_id = instance_id
        self.incarnation = incarnation
        self.alive = True
        self.frozen = False
        self.spans = SpanBook(reply)
        self._times = times
        self._around = around
        self._agenda = around.agenda
        self._reply = reply
        self._server = Server(around.agenda, self.spans)
        self._transfers = Transfers(self, times.profile, around.agenda, around.links, around.engines, reply)
        self._counters = Counters()
        self._steps = OwnSteps(
            instance_id, host, times, around, self._server, self._counters, lambda: self.counters, reply
        )
        around.engines[instance_id] = self

    @property
    def counters(self) -> Counters:
        """What it has counted so far: a copy."""
        counted = copy.copy(self._counters)
        counted.serve_s = self._server.serve_s
        counted.kv_bytes = self._transfers.read_bytes
        return counted

    def receive(self, message: ToWorker) -> None:
        """Carry a command out, or begin to."""
        match message:
            case tw.Step():
                self._steps.add(message)
            case tw.Forget():
                self._steps.forget(message.request_ids)
            case tw.Grant():
                self.spans.grant(message)
            case tw.Revoke():
                self.spans.revoke(message)
            case tw.Checksum():
                self._transfers.checksum(message)
            case tw.Pull():
                self._transfers.pull(message)
            case tw.Link():
                self._link(message)
            case tw.Peers():
                pass  # who is there, `Around` says
            case _:
                raise AssertionError(f"no engine is modelled that can do this: {message}")

    def repeat(self) -> None:
        """Compute the newest Step once more, a position further, as the next."""
        self._steps.repeat()

    def repeat_alone(self, most: int, until: float, pipe_s: float, keep: Keep) -> None:
        """See `OwnSteps.repeat_alone`."""
        self._steps.repeat_alone(most, until, pipe_s, keep)

    def settle(self) -> None:
        """Tell of all steps that have been computed by now."""
        self._steps.settle()

    @property
    def is_computing(self) -> bool:
        """Whether a step of its own is under way."""
        return self._steps.is_computing

    def is_there(self, incarnation: int) -> bool:
        """Whether this process lives, and is the one that is meant."""
        return self.alive and self.incarnation == incarnation

    def slow_down(self, factor: float) -> None:
        """From the next step on everything takes so many times as long; 1 mends it."""
        self._steps.settle()
        self._steps.slow = factor
        self._server.slow_down(factor)

    def kill(self) -> None:
        """The process ends; whoever waits for its partials hears of that."""
        self.alive = False
        self._steps.stop()
        self._server.die()

    # --- for others

    def serve(self, ask: Ask, done: Callable[[], None], lost: Callable[[], None]) -> None:
        """Attend to lent blocks for a step of a debtor. What computes here meanwhile takes longer for it, once."""
        busy = self._steps.is_computing
        serving_s = self._times.serving_s(ask, busy=busy)
        self._counters.attend_queries += ask.rows * self._times.profile.layers
        self._server.serve(serving_s, self._times.model.slowing_s(serving_s), ask.spans, done, lost)
        self._steps.served()

    def _link(self, link: tw.Link) -> None:
        peer = self._around.engines.get(link.instance_id)
        if peer is not None and peer.is_there(link.incarnation):
            problem, took_s = "", self._around.links.round_trip_s(self.instance_id, link.instance_id)
        else:
            problem, took_s = f"no link within {NO_LINK_S:g} s", NO_LINK_S
        answer = fw.Linked(instance_id=link.instance_id, incarnation=link.incarnation, problem=problem)
        self._agenda.after(took_s, lambda: self._reply(answer))
