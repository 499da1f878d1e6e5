"""A whole cluster of state machines in one thread, under a manual clock and a seeded network.

Time moves only in `run`, by ticks; within a tick messages arrive in an order that is drawn.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from random import Random
from typing import Any, cast

from distkv.clock import ManualClock
from distkv.config import MembershipSettings
from distkv.control import commands as c
from distkv.control.cluster.gmanager import GManager
from distkv.control.rmanager.state import RManagerSettings
from distkv.events import ClusterEvent
from distkv.sim.client import Outcome
from distkv.sim.fake_worker import VOCAB, Thread, thread_of
from distkv.sim.loans import LoanCheck
from distkv.sim.network import Channel, Network
from distkv.sim.node import Node
from distkv.types import SamplingParams
from distkv.wire.messages import to_rmanager as tr
from distkv.wire.messages import to_worker as tw
from distkv.wire.messages.counters import Counters
from distkv.wire.messages.envelope import PeerAnswer, ToClient, ToWorker

BLOCK = 4
TICK_S = 0.05
GMANAGER = "gmanager"
STEP_DELAYS = (0.98, 0.9, 0.5, 0.0)
"""How likely anything else overtakes a step, one of these per cluster: steps take longer than messages."""

Delivery = c.Event | c.GManagerRequested | ToWorker


class SimCluster:
    """A gManager and instances i0, i1, ... with `pools` slots each; `settings` are those of all rManagers.

    Every invariant is checked after every event: of the instance or gManager that handled it, and between all.
    nodes: the newest incarnation by instance id. owner: the instance that a request was sent to. outcomes: what its
    client got. events: what was published, and by whom. loans: what must hold between instances.
    """

    def __init__(self, pools: Sequence[int], seed: int = 0, **settings: Any) -> None:
        self.clock = ManualClock(100.0)
        self.random = Random(seed)
        self.network: Network[Delivery] = Network(self.random, {"steps": self.random.choice(STEP_DELAYS)})
        self.nodes: dict[str, Node] = {}
        self.gm: GManager | None = GManager(MembershipSettings())
        self.outcomes: dict[str, Outcome] = defaultdict(Outcome)
        self.owner: dict[str, str] = {}
        self.events: list[tuple[str, ClusterEvent]] = []
        self._settings = settings
        self.loans = LoanCheck(self.nodes)
        self._version = 0
        self._ended: list[str] = []
        for index, slots in enumerate(pools):
            self.start(f"i{index}", slots)
        self.run(1.0)

    # --- instances and the gManager

    def start(self, name: str, slots: int, incarnation: int = 1, **settings: Any) -> None:
        """A new instance, or a new incarnation of one that is dead."""
        usual = {"vocab_size": VOCAB, "block_tokens": BLOCK, "max_num_batched_tokens": 64} | self._settings
        node = Node(
            RManagerSettings(instance_id=name, incarnation=incarnation, num_blocks=slots, **usual | settings),
            Random(self.random.random()),
        )
        self.nodes[name] = node
        for other in self.nodes.values():
            other.worker.peers = {peer: one.worker for peer, one in self.nodes.items()}
        self._carry_out(name, node.rm.introduce(node.member, "sim"))

    def kill(self, name: str) -> None:
        """The instance dies; peers see its connections break."""
        self.nodes[name].worker.alive = False
        self.network.lose(lambda channel: name in (channel.source, channel.target))
        for other, node in self.nodes.items():
            if node.alive:
                self._handle(other, c.PeerDisconnected(name))

    def freeze(self, name: str, frozen: bool = True) -> None:
        """SIGSTOP and SIGCONT: connections stay, nothing moves."""
        self.nodes[name].worker.frozen = frozen

    def drain(self, name: str, timeout_s: float = 20.0) -> None:
        """SIGTERM: it ends in good order."""
        self._handle(name, c.DrainRequested(timeout_s))

    def cut(self, one: str, other: str) -> None:
        """The control connections between two instances break: what is on its way is lost; they connect again."""
        self.network.lose(lambda channel: {channel.source, channel.target} == {one, other})
        for name, peer in ((one, other), (other, one)):
            if self.nodes[name].runs:
                self._handle(name, c.PeerDisconnected(peer))

    def kill_gmanager(self) -> None:
        """The gManager dies, and what is on its way to and from it is lost."""
        self.gm = None
        self.network.lose(lambda channel: GMANAGER in (channel.source, channel.target))

    def restart_gmanager(self) -> None:
        """A gManager that knows nothing."""
        self.gm, self._version = GManager(MembershipSettings()), 0

    # --- clients

    def submit(self, name: str, request_id: str, prompt: Sequence[int], max_tokens: int, **params: Any) -> None:
        """Send a greedy request to an instance; its client stays until it has the answer."""
        sampling = SamplingParams(max_tokens=max_tokens, temperature=0.0, **params)
        submit = tr.Submit(request_id=request_id, prompt=tuple(prompt), params=sampling)
        self.owner[request_id] = name
        self._handle(name, c.Tokenized(submit, tuple(prompt), _route("client", request_id)))

    def cancel(self, request_id: str) -> None:
        """Have the client stop its request."""
        name = self.owner[request_id]
        if self.nodes[name].alive:
            self._handle(name, c.ClientRequested(_route("client", request_id), tr.Cancel(request_id=request_id)))

    def spans(self, request_id: str) -> dict[str, int]:
        """Tokens of a live request by the instance they lie on."""
        held: dict[str, int] = defaultdict(int)
        node = self.nodes[self.owner[request_id]]
        for request in node.rm.status(node.member, Counters()).requests:
            if request.request_id == request_id:
                for span in request.spans:
                    held[span.instance_id] += span.num_tokens
        return dict(held)

    # --- time

    def run(self, seconds: float, until: Callable[[], object] = lambda: False) -> bool:
        """Deliver and tick for a while; true as soon as `until()` is."""
        end = self.clock.now() + seconds
        while self.clock.now() < end:
            for _ in range(self.random.randint(1, 60)):
                if until():
                    return True
                if not self.deliver():
                    break
            self.tick()
        return bool(until())

    def finish(self, seconds: float = 120.0) -> None:
        """Run until every request has ended; TimeoutError if some do not."""
        if not self.run(seconds, lambda: all(self.outcomes[request_id].done for request_id in self.owner)):
            raise TimeoutError(f"not ended: {[r for r in self.owner if not self.outcomes[r].done]}")

    def settle(self, seconds: float = 6.0) -> None:
        """Run one lease longer, and until that is reported: every block must be back, see `validate_idle`."""
        self.run(seconds + 1.0)
        self.validate_idle()

    def tick(self) -> None:
        """A tick passes for everybody; clients say that they are there."""
        now = self.clock.advance(TICK_S)
        while self._ended:
            self.kill(self._ended.pop())
        for name, node in list(self.nodes.items()):
            if node.runs:
                for request_id, owner in self.owner.items():
                    if owner == name and not self.outcomes[request_id].done:
                        self._handle(name, c.ClientRequested(_route("client", request_id), tr.KeepAlive()))
                self._handle(name, c.Tick())
        if self.gm is not None:
            self._handle_gmanager(self.gm, c.Tick(), now)

    def deliver(self) -> bool:
        """Let one message arrive; false if none can."""
        drawn = self.network.draw(lambda target: target not in self.nodes or self.nodes[target].runs)
        if drawn is None:
            return False
        channel, delivery = drawn
        if isinstance(delivery, c.GManagerRequested):
            if self.gm is not None:
                self._handle_gmanager(self.gm, delivery, self.clock.now())
        elif isinstance(delivery, ToWorker):
            self._work(channel.target, cast(Thread, channel.name), delivery)
        else:
            self._handle(channel.target, delivery)
        return True

    # --- checks

    def validate(self) -> None:
        """What holds between all: live debts meet their loans. Each node and the gManager validate themselves."""
        self.loans.validate(self.clock.now())

    def validate_idle(self) -> None:
        """No request runs and a lease has passed: all memory is free, and the gManager knows."""
        assert self.gm is not None
        for name, node in self.nodes.items():
            if node.alive:
                node.validate_idle()
                heartbeat = self.gm.ledger.entries[name].heartbeat
                assert heartbeat is not None and heartbeat.free_blocks == heartbeat.total_blocks, name
        assert self.gm.ledger.debts() == {} and self.gm.ledger.placement() == {}

    # --- events and commands

    def _handle(self, name: str, event: c.Event) -> None:
        self._carry_out(name, self.nodes[name].handle(event, self.clock.now()))
        self.validate()

    def _handle_gmanager(self, gm: GManager, event: c.GManagerRequested | c.Tick, now: float) -> None:
        commands = gm.handle(event, now)
        gm.validate(now)
        assert gm.version >= self._version, "the version of the member list went back"
        self._version = gm.version
        for command in commands:
            match command:
                case c.Answer(route, tr.JoinRefused()):
                    self._ended.append(route.decode())
                case c.Answer(route, tr.Members() | tr.HeartbeatAck() | tr.Creditors() as message):
                    self._send(Channel(GMANAGER, route.decode(), "answers"), c.FromGManager(message))
                case c.Publish():
                    self.events.append((GMANAGER, command.event))
                case _:
                    raise AssertionError(f"a gManager never issues {command}")

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
                    report = c.GManagerRequested(name, name.encode(), command.body)
                    self._send(Channel(name, GMANAGER, "requests"), report)
                case c.TellPeer():
                    request = c.PeerRequested(name, _route("peer", name), command.body)
                    self._send(Channel(name, command.instance_id, "requests"), request)
                case c.Answer():
                    self._answer(name, command)
                case c.Publish():
                    self.events.append((name, command.event))
                case c.Exit():
                    self.nodes[name].exited = command
                    self._ended.append(name)

    def _answer(self, name: str, command: c.Answer) -> None:
        kind, _, who = command.route.decode().partition(":")
        if kind == "peer":
            answer = c.PeerAnswered(name, cast(PeerAnswer, command.body))
            self._send(Channel(name, who, "answers"), answer)
        else:
            self.outcomes[who].receive(cast(ToClient, command.body))

    def _send(self, channel: Channel, delivery: Delivery) -> None:
        """What goes to or comes from the dead is lost."""
        ends = (channel.source, channel.target)
        if GMANAGER in ends and self.gm is None:
            return
        if all(self.nodes[end].alive for end in ends if end != GMANAGER):
            self.network.send(channel, delivery)


def _route(kind: str, name: str) -> bytes:
    """Leads an answer back to a client's request, or to a peer."""
    return f"{kind}:{name}".encode()
