"""A cluster in simulated time: one heap of events, from which every state machine gets what concerns it when it comes.

Messages take the time of their links, workers that of their profile, and who has said by `next_deadline` that it needs
to know the time gets a Tick then. Nothing else happens, and nothing is drawn but by the seed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from math import inf
from random import Random
from typing import Any

import msgspec

from distkv.config import MembershipSettings
from distkv.control import commands as c
from distkv.control.blocks import BlockPool
from distkv.control.rmanager.quiet import is_apart
from distkv.control.rmanager.state import RManagerSettings
from distkv.events import ClusterEvent
from distkv.sim.machines.channel import Channel
from distkv.sim.machines.node import Node
from distkv.sim.machines.processes import Delivery, Processes
from distkv.sim.spec import GMANAGER, SimSpec
from distkv.sim.timed import faults
from distkv.sim.timed.agenda import Agenda, Alarm
from distkv.sim.timed.clients import Clients
from distkv.sim.timed.engine.around import Around
from distkv.sim.timed.engine.engine import VOCAB, Engine, Reply
from distkv.sim.timed.engine.step_work import StepTimes
from distkv.sim.timed.fast_forward import FastForward
from distkv.sim.timed.links import Links, with_links
from distkv.sim.timed.memory import MemorySample, look
from distkv.sim.timed.one_pool import OnePool
from distkv.sim.trace import TraceRequest
from distkv.wire.messages.counters import Counters, total
from distkv.wire.messages.envelope import ToClient, ToWorker
from distkv.wire.messages.from_worker import StepResult

READY_S = 2.0
"""All have joined by then, and the first requests arrive."""
REST_S, GMANAGER_REST_S = 0.001, 0.005
"""Between two Ticks, as in the processes."""
Progress = Callable[[float, int, int], None]
"""Simulated seconds, requests that have ended, and all."""


class TimedCluster:
    """The processes by a spec. events: what was published, when and by whom, if the spec wants it kept. samples: of
    memory. forward: what is handled together with others."""

    def __init__(self, spec: SimSpec) -> None:
        self.spec = spec
        self.agenda = Agenda()
        self.events: list[tuple[float, str, ClusterEvent]] = []
        self.samples: list[MemorySample] = []
        self._random = Random(spec.seed)
        self._profile = with_links(spec.profile, spec.host_link, spec.network_link)
        self._times = StepTimes(self._profile)
        self._around = Around(self.agenda, Links(self._profile, self.agenda, network_shared=spec.network_shared))
        membership = MembershipSettings()
        advice = msgspec.structs.replace(spec.advice, policy=spec.policy)
        self.processes: Processes[Engine] = Processes(
            (GMANAGER,), self.agenda, self, advice, membership, checks=spec.checks
        )
        self.gmanager = self.processes.gmanagers[GMANAGER]
        self._gmanager_alarm = Alarm(self.agenda, self._gmanager_due, self._tick_gmanager, GMANAGER_REST_S)
        self._alarms: dict[str, Alarm] = {}
        self._counted = Counters()
        self._pools: list[OnePool] = []
        self.clients = Clients(self.agenda, self, spec.message_s, spec.deadline_s)
        self.forward = FastForward(self.agenda, self.clients, spec.pipe_s, self._hear)
        for index, name in enumerate(spec.names):
            self._around.links.place(name, self._host(index))
            # Heartbeats of real instances do not come all at once either.
            self.agenda.at(membership.heartbeat_s * index / spec.instances, partial(self.start, name))
        faults.schedule(spec, self.agenda, self, READY_S)

    def count(self) -> Counters:
        """Of all instances, those that died included."""
        self._settle_all()
        living = (node for node in self.processes.nodes.values() if node.alive)
        return total(self._counted, *(total(node.rm.state.counters, node.worker.counters) for node in living))

    def play(self, trace: Sequence[TraceRequest], progress: Progress = lambda now_s, ended, of: None) -> None:
        """Serve these requests, which are in order of arrival, until all have ended or `most_s` have passed."""
        self.clients.play(trace, READY_S)
        self._look(len(trace), progress)
        until = inf if self.spec.most_s is None else READY_S + self.spec.most_s
        self.agenda.run(until, lambda: not self.clients.num_open)
        self._settle_all()

    # --- instances

    def start(self, name: str) -> None:
        """A new instance, or a new incarnation of one that is dead."""
        spec, before = self.spec, self.processes.nodes.get(name)
        usual: dict[str, Any] = {
            "vocab_size": VOCAB,
            "block_tokens": self._profile.block_tokens,
            "profile": self._profile,
        }
        settings = RManagerSettings(
            instance_id=name,
            incarnation=1 if before is None else before.settings.incarnation + 1,
            num_blocks=spec.num_blocks,
            **usual | spec.settings,
        )
        host = self._host(spec.names.index(name))
        engine = Engine(
            name, settings.incarnation, host, self._times, self._around, lambda reply: self._reply(engine, reply)
        )
        make_pool = partial(OnePool, all_pools=self._pools) if spec.one_pool else BlockPool
        entropy = Random(self._random.random())
        node = Node(settings, entropy, engine, host_key=host, checks=spec.checks, make_pool=make_pool)
        self.processes.nodes[name] = node
        self._alarms[name] = Alarm(self.agenda, lambda: node.deadline, lambda: self._handle(node, c.Tick()), REST_S)
        self.processes.introduce(name)
        self._alarms[name].check()

    def kill(self, name: str) -> None:
        """The processes of an instance die; all others see their connections break."""
        node = self.processes.nodes[name]
        if not node.alive:
            return
        self.forward.catch_up(name)
        self._counted = total(self._counted, node.rm.state.counters, node.worker.counters)
        node.worker.kill()
        self._alarms[name].stop()
        for other in self.processes.nodes.values():
            if other.alive:
                self._deliver_to(other, c.PeerDisconnected(name), self.spec.message_s)
        self.agenda.after(self.spec.message_s, lambda: self.clients.lost(name))

    def restart(self, name: str) -> None:
        """An instance is started again if it is dead."""
        if not self.processes.nodes[name].alive:
            self.start(name)

    def slow_down(self, name: str, factor: float) -> None:
        """An instance takes so many times as long for everything; 1 is as ever."""
        self.processes.nodes[name].worker.slow_down(factor)

    def living(self) -> list[str]:
        """The instances that are not dead."""
        return [name for name in self.spec.names if self.processes.nodes[name].alive]

    # --- the gManager

    def kill_gmanager(self) -> None:
        """Its process dies; what was sent to it and not answered is lost."""
        if self.gmanager.runs:
            self.gmanager.kill()
            self._gmanager_alarm.stop()
            self.agenda.after(self.spec.message_s, self.clients.gmanager_lost)

    def restart_gmanager(self) -> None:
        """It is started again if it is dead, and the instances present themselves."""
        if not self.gmanager.runs:
            self.gmanager.start()
            self.agenda.after(self.spec.message_s, self.processes.introduce_all)
            self._gmanager_alarm.check()

    def _gmanager_due(self) -> float:
        return inf if self.gmanager.machine is None else self.gmanager.machine.next_deadline()

    def _host(self, index: int) -> str:
        return f"host{index // self.spec.instances_per_host}"

    # --- what the processes say

    def send(self, channel: Channel, delivery: Delivery) -> None:
        """What goes to a worker is there at once; everything else takes its time."""
        if channel.is_within:
            assert isinstance(delivery, ToWorker)
            self.processes.nodes[channel.target].worker.receive(delivery)
        elif isinstance(delivery, c.GManagerRequested):
            self.ask_gmanager(delivery)
        else:
            assert not isinstance(delivery, ToWorker)
            self._deliver_to(self.processes.nodes[channel.target], delivery, self.spec.message_s)

    def tell_client(self, source: str, client: str, body: ToClient) -> None:
        """Clients hear something."""
        self.clients.receive(body)

    def publish(self, source: str, event: ClusterEvent) -> None:
        """Keep it, if that is wanted."""
        if self.spec.keep_events:
            self.events.append((self.agenda.now() - READY_S, source, event))

    def end(self, name: str) -> None:
        """An instance ends by itself, when it has said what it had to say."""
        self.agenda.after(self.spec.message_s, lambda: self.kill(name))

    # --- what clients say

    def ask_gmanager(self, request: c.GManagerRequested) -> bool:
        """Send the gManager something; false if there is none."""
        sent_to = self.gmanager.machine
        if sent_to is None:
            return False

        def arrive() -> None:
            if self.gmanager.machine is sent_to:
                self.processes.handle_gmanager(self.gmanager, request)
                self._gmanager_alarm.check()

        self.agenda.after(self.spec.message_s, arrive)
        return True

    def submit(self, name: str, tokenized: c.Tokenized) -> bool:
        """Send an instance a request; false if it is not there."""
        node = self.processes.nodes[name]
        if not node.runs:
            return False

        def arrive() -> None:
            if (ended := node.rm.refuse_at_once(tokenized.submit.request_id)) is not None:
                self.clients.receive(ended)
            else:
                self._handle(node, tokenized)

        self.agenda.after(self.spec.message_s, lambda: arrive() if node.alive else None)
        return True

    def tell(self, name: str, event: c.ClientRequested) -> None:
        """Send an instance something of a client."""
        self._deliver_to(self.processes.nodes[name], event, self.spec.message_s)

    def is_ready(self, name: str) -> bool:
        """Whether an instance is there and takes requests."""
        node = self.processes.nodes.get(name)
        return node is not None and node.runs and node.rm.state.instance_state == "ready"

    def settle(self, name: str) -> None:
        """Have an instance, if it is there, handle what it has been spared while its decode was quiet."""
        if name in self.forward.behind:
            self.forward.catch_up(name)
            self._alarms[name].check()

    def _settle_all(self) -> None:
        for name in self.forward.behind:
            self.settle(name)

    def ready(self) -> list[str]:
        """All that do."""
        return [name for name in self.spec.names if self.is_ready(name)]

    # --- time

    def _deliver_to(self, node: Node[Engine], event: c.Event, delay_s: float) -> None:
        """To this process, if it lives then."""
        self.agenda.after(delay_s, lambda: self._handle(node, event))

    def _reply(self, engine: Engine, message: Reply) -> None:
        if engine.alive:
            node = self.processes.nodes[engine.instance_id]
            self.agenda.after(self.spec.pipe_s, lambda: self._hear(node, message))

    def _hear(self, node: Node[Engine], message: Reply) -> None:
        """Of a worker: what is alike while decode is quiet is handled later, all at once."""
        if (
            not isinstance(message, StepResult)
            or not node.alive
            or not self.spec.fast_forward
            or self.spec.one_pool
            or not self.forward.takes(node, message)
        ):
            self._handle(node, c.FromWorker(message))

    def _handle(self, node: Node[Engine], event: c.Event) -> None:
        if node.alive:
            name = node.settings.instance_id
            if not is_apart(event):
                self.forward.catch_up(name)
            free = node.rm.state.pool.num_free
            self.processes.handle(name, event)
            self._alarms[name].check()
            if self._pools and node.rm.state.pool.num_free > free:
                self._tell_others(node)

    def _tell_others(self, node: Node[Engine]) -> None:
        """Where memory is one pool, what has come free at one is for who waits at any."""
        for other in self.processes.nodes.values():
            if other is not node and other.alive:
                self._deliver_to(other, c.Tick(), 0.0)

    def _tick_gmanager(self) -> None:
        self.processes.handle_gmanager(self.gmanager, c.Tick())

    def _look(self, num_requests: int, progress: Progress) -> None:
        """At the memory of all, now and from time to time."""
        now_s = self.agenda.now() - READY_S
        if now_s >= 0:
            self._settle_all()
            self.samples.append(look(self.processes.nodes, self.spec.names, now_s))
            progress(now_s, num_requests - self.clients.num_open, num_requests)
        self.agenda.at(
            READY_S if now_s < 0 else self.agenda.now() + self.spec.sample_s,
            lambda: self._look(num_requests, progress),
        )
