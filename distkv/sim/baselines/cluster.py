"""A cluster of instances that batch continuously, in simulated time: requests arrive, go where a placement says, and
what becomes of them is noted, as in `distkv.sim.timed` with the same engines, links and messages' times."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Sequence
from random import Random
from typing import Protocol

from msgspec.structs import replace

from distkv.config import ControlSettings
from distkv.sim.baselines.batching.instance import BatchingInstance, Host
from distkv.sim.baselines.batching.prompts import Prompts
from distkv.sim.baselines.batching.served import Served
from distkv.sim.baselines.dispatch import dispatched, fewest_requests
from distkv.sim.outcome import DEADLINE, Outcome
from distkv.sim.spec import SimSpec
from distkv.sim.timed import faults
from distkv.sim.timed.agenda import Agenda
from distkv.sim.timed.engine.step_work import StepTimes
from distkv.sim.timed.links import Links, with_links
from distkv.sim.timed.memory import MemorySample
from distkv.sim.token_times import TokenTimes
from distkv.sim.trace import TraceRequest
from distkv.wire.messages.counters import Counters, total

TOO_LARGE = "it needs more memory than an instance has"
NO_INSTANCE = "no instance is ready to serve the request"
LOST = "its instance was lost"
MOST_TRIES = 4
"""As clients of distkv try (`client.dispatch`)."""
Progress = Callable[[float, int, int], None]


class Placement(Protocol):
    """Where requests are, and where they go."""

    def choose(self, one: Served) -> BatchingInstance | None:
        """Where a request begins; None if nobody is there that could take it."""
        ...

    def lost(self, instance: BatchingInstance, held: Sequence[Served]) -> Iterable[Served]:
        """An instance has died that had these: what was under way to or from it ends. Returns who is lost with it."""
        ...

    def drop(self, one: Served) -> None:
        """A request is over before its end."""
        ...


class BaselineCluster:
    """Instances by a spec. place: what says where requests go, made of the cluster. prompts: how they get into steps.
    placement: what was made. served: requests that have arrived, in that order. samples: of memory. has_gmanager:
    whether one is there that knows of all where there is room."""

    def __init__(
        self, spec: SimSpec, place: Callable[[BaselineCluster], Placement], *, prompts: Prompts = "short"
    ) -> None:
        self.spec = spec
        self.agenda = Agenda()
        self.random = Random(spec.seed)
        self.samples: list[MemorySample] = []
        self.served: list[Served] = []
        profile = with_links(spec.profile, spec.host_link, spec.network_link)
        self.links = Links(profile, self.agenda, network_shared=spec.network_shared)
        self.block_bytes = profile.layers * profile.kv_bytes * profile.block_tokens
        times, settings = StepTimes(profile), _settings(spec)
        hosts = [Host() for _ in range(-(-spec.instances // spec.instances_per_host))]
        said_s = spec.pipe_s + spec.message_s
        self.instances: list[BatchingInstance] = []
        for index, name in enumerate(spec.names):
            number = index // spec.instances_per_host
            self.links.place(name, f"host{number}")
            self.instances.append(
                BatchingInstance(
                    name,
                    spec.num_blocks,
                    times,
                    settings,
                    self.agenda,
                    hosts[number],
                    said_s,
                    self._ended,
                    prompts,
                )
            )
        self.has_gmanager = True
        self._by_name = {one.name: one for one in self.instances}
        self.placement = place(self)
        self._open: dict[Served, None] = {}
        self._num_to_come = 0
        faults.schedule(spec, self.agenda, self, 0.0)

    @property
    def outcomes(self) -> list[Outcome]:
        """Of all requests that have arrived, in that order."""
        return [one.outcome for one in self.served]

    def __getitem__(self, name: str) -> BatchingInstance:
        return self._by_name[name]

    @property
    def counters(self) -> Counters:
        """Of all instances."""
        return total(*(one.counters for one in self.instances))

    def play(self, trace: Sequence[TraceRequest], progress: Progress) -> None:
        """Serve these requests, which are in order of arrival, until all have ended or `most_s` have passed."""
        self._num_to_come = len(trace)
        todo = iter(enumerate(trace))

        def wait_for_next() -> None:
            if (found := next(todo, None)) is not None:
                order, request = found
                self.agenda.at(request.arrival_s, lambda: arrive(order, request))

        def arrive(order: int, request: TraceRequest) -> None:
            self._arrive(order, request)
            wait_for_next()

        wait_for_next()
        self._look(len(trace), progress)
        until = float("inf") if self.spec.most_s is None else self.spec.most_s
        self.agenda.run(until, lambda: not self._num_to_come + len(self._open))

    def stop(self, why: str) -> None:
        """Whatever is open fails."""
        self._settle()
        for one in list(self._open):
            self.end(one, why)

    def send(self, one: Served, instance: BatchingInstance, messages: int) -> None:
        """A request is on its way to an instance for so many messages' time."""
        one.at = instance.name
        instance.queue.expect(one)
        self.agenda.after(messages * self.spec.message_s, lambda: instance.submit(one))

    def dispatched(self, one: Served, among: Iterable[BatchingInstance]) -> BatchingInstance | None:
        """Where a request goes, of those that are there: as the spec says, or without a gManager where its client has
        the fewest; None if nobody is."""
        living = [instance for instance in among if instance.alive]
        if not living:
            return None
        if not self.has_gmanager:
            return fewest_requests(living)
        return dispatched(one, living, self.spec.advice.dispatch, self.random)

    @property
    def ready(self) -> list[BatchingInstance]:
        """Those that are there."""
        return [one for one in self.instances if one.alive]

    # --- faults

    def kill(self, name: str) -> None:
        """The process of an instance dies. Who got tokens there fails; who waited there is sent to another."""
        instance = self._by_name[name]
        if instance.alive:
            for one in self.placement.lost(instance, instance.die()):
                self.lose(one)

    def restart(self, name: str) -> None:
        """An instance is started again if it is dead."""
        self._by_name[name].restart()

    def slow_down(self, name: str, factor: float) -> None:
        """An instance takes so many times as long; 1 is as ever."""
        self._by_name[name].slow_down(factor)

    def kill_gmanager(self) -> None:
        """Nobody knows where there is room: clients go where they have the fewest requests, and nothing is paired."""
        self.has_gmanager = False

    def restart_gmanager(self) -> None:
        """It is started again."""
        self.has_gmanager = True

    def living(self) -> list[str]:
        """The instances that are not dead, by name."""
        return [one.name for one in self.ready]

    def lose(self, one: Served) -> None:
        """Nothing is left of a request where it was: who got tokens fails, who waited is sent to another."""
        if one.is_over:
            return
        one.at, one.computed = "", 0
        if one.outcome.times_s:
            self.end(one, LOST)
        else:  # its client hears of it, and asks again
            self.agenda.after(2 * self.spec.message_s, lambda: self._dispatch(one))

    # --- a request

    def _arrive(self, order: int, request: TraceRequest) -> None:
        one = Served(Outcome(request, TokenTimes()), request.arrival_s, order)
        self.served.append(one)
        self._open[one] = None
        self._num_to_come -= 1
        if -(-request.num_tokens // self.spec.profile.block_tokens) > self.spec.num_blocks:
            self.end(one, TOO_LARGE)
            return
        if self.spec.deadline_s is not None:
            self.agenda.after(self.spec.deadline_s, lambda: self._give_up(one))
        self.agenda.after(self.spec.message_s, lambda: self._dispatch(one))

    def _dispatch(self, one: Served) -> None:
        """What is asked where a request goes answers, and it goes there."""
        if one.is_over:
            return
        self._settle()
        one.tries += 1
        instance = self.placement.choose(one) if one.tries <= MOST_TRIES else None
        if instance is None:
            self.end(one, NO_INSTANCE if one.tries <= MOST_TRIES else LOST)
        else:
            self.send(one, instance, 2)

    def _ended(self, one: Served) -> None:
        if not one.is_over:
            self.end(one, "")

    def _give_up(self, one: Served) -> None:
        if one.is_over:
            return
        if one.at:
            self._by_name[one.at].settle()
        if not one.is_over:
            self.end(one, DEADLINE)
            if one.at:
                self.placement.drop(one)

    def end(self, one: Served, failed: str) -> None:
        """Nothing more becomes of a request; `failed` says why, and is empty if it has all its tokens."""
        one.is_over = True
        one.outcome.failed = failed
        del self._open[one]

    # --- all

    def _settle(self) -> None:
        for instance in self.instances:
            instance.settle()
            if self.spec.checks:
                instance.validate()

    def _look(self, num_requests: int, progress: Progress) -> None:
        """At the memory of all, now and from time to time."""
        self._settle()
        self.samples.append(_sample(self.instances, self.agenda.now()))
        progress(self.agenda.now(), num_requests - self._num_to_come - len(self._open), num_requests)
        self.agenda.after(self.spec.sample_s, lambda: self._look(num_requests, progress))


def _settings(spec: SimSpec) -> ControlSettings:
    """Of an instance: those that a spec has of rManagers."""
    known = {name: value for name, value in spec.settings.items() if name in ControlSettings.__struct_fields__}
    return replace(ControlSettings(), **known)


def _sample(instances: Iterable[BatchingInstance], at_s: float) -> MemorySample:
    rows = [
        (one.num_blocks - one.free, 0, one.free if one.alive else 0, len(one.running), len(one.queue))
        for one in instances
    ]
    own, lent, free, running, waiting = (array("i", column) for column in zip(*rows, strict=True))
    return MemorySample(at_s, own, lent, free, running, waiting, ())
