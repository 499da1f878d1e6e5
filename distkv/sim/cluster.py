"""A whole cluster of state machines in one thread, under a manual clock and a seeded network.

Messages of one channel stay in order; which channel delivers next is drawn. Time moves only by hand.
"""

from __future__ import annotations

from collections import defaultdict, deque
from dataclasses import dataclass, field
from random import Random

from distkv.clock import ManualClock
from distkv.control import commands as c
from distkv.control.cluster.gmanager import GManager, GManagerSettings
from distkv.control.request.output import NoText
from distkv.control.rmanager.state import RManagerSettings
from distkv.control.rmanager.state_machine import RManager
from distkv.events import ClusterEvent
from distkv.sim.fake_worker import VOCAB, FakeWorker
from distkv.types import SamplingParams, TokenLogprobs
from distkv.wire.messages import to_client as tc
from distkv.wire.messages import to_rmanager as tr
from distkv.wire.messages import to_worker as tw
from distkv.wire.messages.common import Member
from distkv.wire.messages.counters import Counters

BLOCK = 4
TICK_S = 0.05

WORKER_THREADS = ("steps", "transfers", "main")


def _thread_of(command: object) -> str:
    """The thread of a real worker that carries a command out: threads overtake each other."""
    if isinstance(command, tw.Step | tw.Forget):
        return "steps"
    return "transfers" if isinstance(command, tw.Checksum | tw.Pull) else "main"


@dataclass
class Node:
    rm: RManager
    worker: FakeWorker
    member: Member
    alive: bool = True
    frozen: bool = False
    exited: c.Exit | None = None


@dataclass
class Outcome:
    tokens: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprobs | None] = field(default_factory=list)
    queue_s: float | None = None
    finish: str = ""
    ended: tc.RequestEnded | None = None

    @property
    def done(self) -> bool:
        return bool(self.finish) or self.ended is not None


class SimCluster:
    """`pools`: slots per instance, named i0, i1, ..."""

    def __init__(self, pools: list[int], seed: int = 0, **settings: object) -> None:
        self.clock = ManualClock(100.0)
        self.random = Random(seed)
        self.step_speed = self.random.choice([0.02, 0.1, 0.5, 1.0])
        self.settings = settings
        self.queues: dict[tuple[str, str, str], deque[object]] = defaultdict(deque)
        self.nodes: dict[str, Node] = {}
        self.outcomes: dict[str, Outcome] = defaultdict(Outcome)
        self.owner: dict[str, str] = {}
        self.gm: GManager | None = GManager(GManagerSettings())
        self.events: list[tuple[str, ClusterEvent]] = []
        self.sent: list[tuple[str, c.Command]] = []
        self.outgoing: list[str] = []
        for index, slots in enumerate(pools):
            self.start(f"i{index}", slots)
        self.run(1.0)

    # --- what a test does

    def start(self, name: str, slots: int, incarnation: int = 1) -> None:
        settings = RManagerSettings(
            instance_id=name,
            incarnation=incarnation,
            block_tokens=BLOCK,
            num_blocks=slots,
            vocab_size=VOCAB,
            **{"max_num_batched_tokens": 64} | self.settings,  # type: ignore[arg-type]
        )
        member = Member(
            instance_id=name,
            incarnation=incarnation,
            address=f"sim://{name}",
            state="ready",
            block_tokens=BLOCK,
            total_blocks=slots,
            lendable_blocks=settings.lendable_blocks,
        )
        worker = FakeWorker(name, incarnation, slots, BLOCK)
        node = Node(RManager(settings, NoText, Random(self.random.random())), worker, member)
        self.nodes[name] = node
        for other in self.nodes.values():
            other.worker.peers = {n: x.worker for n, x in self.nodes.items()}
        self._carry_out(name, node.rm.introduce(member, "sim"))

    def submit(self, name: str, request_id: str, prompt: list[int], max_tokens: int, **params: object) -> None:
        sampling = SamplingParams(max_tokens=max_tokens, temperature=0.0, **params)  # type: ignore[arg-type]
        submit = tr.Submit(request_id=request_id, prompt=tuple(prompt), params=sampling)
        self.owner[request_id] = name
        self._handle(name, c.Tokenized(submit, tuple(prompt), b"client:" + request_id.encode()))

    def cancel(self, request_id: str) -> None:
        name = self.owner[request_id]
        if self.nodes[name].alive:
            route = b"client:" + request_id.encode()
            self._handle(name, c.ClientRequested(route, tr.Cancel(request_id=request_id)))

    def kill(self, name: str) -> None:
        """The instance dies; peers see its connections break."""
        self.nodes[name].alive = self.nodes[name].worker.alive = False
        for key in [k for k in self.queues if name in (k[0], k[2])]:
            self.queues[key].clear()
        for other in self.nodes:
            if other != name and self.nodes[other].alive:
                self._handle(other, c.PeerDisconnected(name))

    def cut(self, one: str, other: str) -> None:
        """The control connections between two instances break: what is on its way is lost; they connect again."""
        for key in [k for k in self.queues if {k[0], k[2]} == {one, other}]:
            self.queues[key].clear()
        for name, peer in ((one, other), (other, one)):
            if self.nodes[name].alive and not self.nodes[name].frozen:
                self._handle(name, c.PeerDisconnected(peer))

    def freeze(self, name: str, frozen: bool = True) -> None:
        """SIGSTOP and SIGCONT: connections stay, nothing moves."""
        self.nodes[name].frozen = self.nodes[name].worker.frozen = frozen

    def kill_gmanager(self) -> None:
        self.gm = None
        for key in [k for k in self.queues if "gm" in (k[0], k[2])]:
            self.queues[key].clear()

    def restart_gmanager(self) -> None:
        self.gm = GManager(GManagerSettings())

    def drain(self, name: str, timeout_s: float = 20.0) -> None:
        self._handle(name, c.DrainRequested(timeout_s))

    def run(self, seconds: float, until: object = None) -> bool:
        """Deliver and tick for a while; true as soon as `until()` holds."""
        end = self.clock.now() + seconds
        while self.clock.now() < end:
            for _ in range(self.random.randint(1, 60)):
                if callable(until) and until():
                    return True
                if not self.deliver_one():
                    break
            self.tick()
        return callable(until) and bool(until())

    def finish(self, seconds: float = 120.0) -> None:
        """Run until every request has ended."""
        done = self.run(seconds, lambda: all(self.outcomes[r].done for r in self.owner))
        assert done, f"not ended: {[r for r in self.owner if not self.outcomes[r].done]}"

    def settle(self, seconds: float = 6.0) -> None:
        """Run one lease longer, then every block must be back."""
        self.run(seconds)
        for name, node in self.nodes.items():
            if node.alive:
                pool = node.rm.state.pool
                assert pool.num_free == pool.num_slots, f"{name}: {pool.num_free} of {pool.num_slots} free"
                assert not node.rm.state.loans.loans
        self.run(1.0)
        assert self.gm is not None
        assert self.gm.ledger.debts() == {} and self.gm.ledger.placement() == {}
        for name, entry in self.gm.ledger.entries.items():
            if self.nodes[name].alive:
                assert entry.heartbeat is not None and entry.heartbeat.free_blocks == entry.heartbeat.total_blocks

    # --- the network

    def tick(self) -> None:
        now = self.clock.advance(TICK_S)
        while self.outgoing:
            self.kill(self.outgoing.pop())
        for name, node in list(self.nodes.items()):
            if node.alive and not node.frozen:
                for request_id, owner in self.owner.items():
                    if owner == name and not self.outcomes[request_id].done:
                        route = b"client:" + request_id.encode()
                        self._handle(name, c.ClientRequested(route, tr.KeepAlive()))
                self._handle(name, c.Tick())
        if self.gm is not None:
            self._gm_commands(self.gm.handle(c.Tick(), now))

    def deliver_one(self) -> bool:
        ready = sorted(k for k, q in self.queues.items() if q and not self._blocked(k[2]))
        if not ready:
            return False
        key = self.random.choice(ready)
        if key[1] == "steps" and len(ready) > 1 and self.random.random() > self.step_speed:
            return True  # a step takes longer than anything else
        source, kind, target = key
        message = self.queues[key].popleft()
        if target == "gm":
            if self.gm is not None:
                event = c.GManagerRequested(source, source.encode(), message)  # type: ignore[arg-type]
                self._gm_commands(self.gm.handle(event, self.clock.now()))
        elif kind == "main" and isinstance(message, tw.Revoke):
            # Closed at once; answered by the transfer thread, behind the pulls that were asked for before.
            self.nodes[target].worker.spans.pop(message.span.span_id, None)
            self._send((target, "transfers", target), message)
        elif kind in WORKER_THREADS:
            for reply in self.nodes[target].worker.handle(message):
                self._send((target, "from-" + kind, target), reply)
        elif kind.startswith("from-"):
            self._handle(target, c.FromWorker(message))  # type: ignore[arg-type]
        elif source == "gm":
            self._handle(target, c.FromGManager(message))  # type: ignore[arg-type]
        elif kind == "answer":
            self._handle(target, c.PeerAnswered(source, message))  # type: ignore[arg-type]
        else:
            self._handle(target, c.PeerRequested(source, f"peer:{source}".encode(), message))  # type: ignore[arg-type]
        return True

    def _blocked(self, target: str) -> bool:
        return target in self.nodes and self.nodes[target].frozen

    def _send(self, key: tuple[str, str, str], message: object) -> None:
        source, _, target = key
        for end in (source, target):
            if end in self.nodes and not self.nodes[end].alive:
                return
        if target == "gm" and self.gm is None:
            return
        self.queues[key].append(message)

    def _handle(self, name: str, event: c.Event) -> None:
        node = self.nodes[name]
        commands = node.rm.handle(event, self.clock.now())
        node.rm.validate()
        self._carry_out(name, commands)

    def _carry_out(self, name: str, commands: list[c.Command]) -> None:
        node = self.nodes[name]
        for command in commands:
            self.sent.append((name, command))
            match command:
                case c.TellWorker():
                    self._send((name, _thread_of(command.body), name), command.body)
                case c.TellGManager():
                    self._send((name, "", "gm"), command.body)
                case c.TellPeer():
                    self._send((name, "ask", command.instance_id), command.body)
                case c.Answer():
                    self._answer(name, command)
                case c.Publish():
                    self.events.append((name, command.event))
                case c.Exit():
                    node.exited = command
                    self.outgoing.append(name)

    def _answer(self, name: str, command: c.Answer) -> None:
        kind, _, who = command.route.decode().partition(":")
        if kind == "peer":
            self._send((name, "answer", who), command.body)
            return
        outcome = self.outcomes[who]
        assert not outcome.done, f"{who} gets {command.body} after its end"
        if isinstance(command.body, tc.TokenChunk):
            self._take(outcome, command.body)
        elif isinstance(command.body, tc.RequestEnded):
            outcome.ended = command.body

    def _take(self, outcome: Outcome, chunk: tc.TokenChunk) -> None:
        assert not (chunk.prompt_logprobs and outcome.tokens), "the prompt comes before the output"
        assert (chunk.queue_s is not None) == (bool(chunk.token_ids) and not outcome.tokens)
        outcome.tokens.extend(chunk.token_ids)
        outcome.logprobs.extend(chunk.logprobs or ())
        outcome.prompt_logprobs.extend(chunk.prompt_logprobs or ())
        outcome.queue_s = chunk.queue_s if outcome.queue_s is None else outcome.queue_s
        outcome.finish = chunk.finish_reason or ""

    def _gm_commands(self, commands: list[c.Command]) -> None:
        for command in commands:
            if isinstance(command, c.Answer):
                self._send(("gm", "answer", command.route.decode()), command.body)

    def spans(self, request_id: str) -> dict[str, int]:
        """Tokens of a request by instance."""
        held: dict[str, int] = defaultdict(int)
        node = self.nodes[self.owner[request_id]]
        for request in node.rm.status(node.member, Counters()).requests:
            if request.request_id == request_id:
                for span in request.spans:
                    held[span.instance_id] += span.num_tokens
        return dict(held)
