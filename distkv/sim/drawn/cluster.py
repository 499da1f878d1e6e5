"""A whole cluster of state machines in one thread, under a manual clock and a seeded network.

Time moves only in `run`, in small steps, within which messages arrive in an order that is drawn. Who has said by its
`next_deadline` that it needs to know the time gets a Tick, and nobody else.
"""

from __future__ import annotations

from array import array
from collections import defaultdict
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

import msgspec

from distkv.clock import ManualClock
from distkv.config import AdviceSettings
from distkv.control import commands as c
from distkv.control.cluster.gmanager import GManager
from distkv.control.rmanager.state import RManagerSettings
from distkv.sim.drawn.fake_worker import VOCAB, FakeWorker
from distkv.sim.drawn.progress import ProgressWatch
from distkv.sim.drawn.surroundings import Drawn
from distkv.sim.machines.node import Node
from distkv.sim.machines.processes import client_route
from distkv.token_ids import pack
from distkv.types import SamplingParams
from distkv.wire.messages import to_rmanager as tr
from distkv.wire.messages.counters import Counters

BLOCK = 4
TICK_S = 0.05
KEEP_ALIVE_S = 1.0
MOST_MESSAGES = 15
"""Delivered in one tick for each instance, at most; four instances at least."""
GMANAGER = "gmanager"


class SimCluster:
    """gManagers and instances i0, i1, ... with `pools` slots each; `settings` are those of all rManagers,
    `advice` those of the gManagers.

    Every invariant is checked after every event: of the instance or gManager that handled it, and between all. In
    a cluster of 100 members and more the machines' own are checked more rarely.
    nodes: the newest incarnation by instance id. owner: the instance that a request was sent to. outcomes: what its
    client got. events: what was published, and by whom. loans: what must hold between instances.
    """

    def __init__(
        self,
        pools: Sequence[int],
        seed: int = 0,
        gmanagers: Sequence[str] = (GMANAGER,),
        advice: AdviceSettings | None = None,
        **settings: Any,
    ) -> None:
        self.clock = ManualClock(100.0)
        self.random = Random(seed)
        self._drawn = Drawn(gmanagers, self.clock, self.random, advice or AdviceSettings())
        self._processes = self._drawn.processes
        self.nodes = self._processes.nodes
        self.gmanagers = self._processes.gmanagers
        self.network = self._drawn.network
        self.outcomes = self._drawn.outcomes
        self.events = self._drawn.events
        self.loans = self._processes.loans
        self.owner: dict[str, str] = {}
        self.progress = ProgressWatch(self.nodes, self.owner, self.outcomes)
        self._settings = settings
        self._keep_alive_at = 0.0
        self._workers: dict[str, FakeWorker] = {}
        self._submitted: dict[str, c.Tokenized] = {}
        self._submitted_s: dict[str, float] = {}
        for index, slots in enumerate(pools):
            self.start(f"i{index}", slots)
        self.run(1.0)

    # --- instances and the gManager

    def start(self, name: str, slots: int, incarnation: int = 1, *, host: str = "", **settings: Any) -> None:
        """A new instance, or a new incarnation of one that is dead. host: see Node, `host_key`."""
        usual = {"vocab_size": VOCAB, "block_tokens": BLOCK, "max_num_batched_tokens": 64} | self._settings
        chosen = RManagerSettings(instance_id=name, incarnation=incarnation, num_blocks=slots, **usual | settings)
        worker = FakeWorker(name, incarnation, slots, chosen.block_tokens)
        self.nodes[name] = Node(chosen, Random(self.random.random()), worker, host_key=host)
        self._workers[name] = worker
        worker.peers = self._workers
        self._processes.introduce(name)

    def kill(self, name: str) -> None:
        """The instance dies; peers see its connections break."""
        self.nodes[name].worker.alive = False
        self.network.lose(lambda channel: name in (channel.source, channel.target))
        for other, node in self.nodes.items():
            if node.alive:
                self._processes.handle(other, c.PeerDisconnected(name))

    def freeze(self, name: str, frozen: bool = True) -> None:
        """SIGSTOP and SIGCONT: connections stay, nothing moves."""
        self.nodes[name].worker.frozen = frozen

    def drain(self, name: str, timeout_s: float = 20.0) -> None:
        """SIGTERM: it ends in good order."""
        self._processes.handle(name, c.DrainRequested(timeout_s))

    def cut(self, one: str, other: str) -> None:
        """The control connections between two instances break: what is on its way is lost; they connect again."""
        self.network.lose(lambda channel: {channel.source, channel.target} == {one, other})
        for name, peer in ((one, other), (other, one)):
            if self.nodes[name].runs:
                self._processes.handle(name, c.PeerDisconnected(peer))

    def cut_path(self, reader: str, source: str, is_cut: bool = True) -> None:
        """The reader's worker gets nothing from the other's, neither partials nor blocks; the other way stays as it is,
        and so do the control connections. `is_cut` False mends it."""
        cut_from = self.nodes[reader].worker.cut_from
        cut_from.add(source) if is_cut else cut_from.discard(source)

    def fail_pulls(self, name: str, failing: bool = True) -> None:
        """Whatever the instance's worker pulls fails, from whomever."""
        self.nodes[name].worker.pulls_fail = failing

    def stall_steps(self, name: str, stalled: bool = True) -> None:
        """The instance's worker computes nothing for itself; it still serves peers, and its rManager runs."""
        self.nodes[name].worker.stalled = stalled

    # --- gManagers

    @property
    def gm(self) -> GManager | None:
        """The gManager that instances speak to."""
        heard = self.gmanagers.heard_by_instances
        return None if heard is None else heard.machine

    def kill_gmanager(self, name: str = GMANAGER) -> None:
        """The gManager dies, and what is on its way to and from it is lost; instances turn to the next there is."""
        self.gmanagers[name].kill()
        self.network.lose(lambda channel: name in (channel.source, channel.target))
        self._processes.introduce_all()

    def restart_gmanager(self, name: str = GMANAGER) -> None:
        """A gManager that knows nothing; instances connect to it."""
        self.gmanagers[name].start()
        self._processes.introduce_all()

    def stall_gmanager(self, name: str = GMANAGER, stalled: bool = True) -> None:
        """The gManager stands still: what is sent to it waits, and comes before anything else when it goes on."""
        self.gmanagers[name].stalled = stalled
        while not stalled and self._drawn.deliver(name):
            pass

    # --- clients

    def submit(
        self,
        name: str,
        request_id: str,
        prompt: Sequence[int],
        max_tokens: int,
        *,
        bad_words: tuple[tuple[int, ...], ...] = (),
        grammar_id: int | None = None,
        can_move: bool = False,
        **params: Any,
    ) -> None:
        """Send a greedy request to an instance; its client stays until it has the answer. bad_words: as token ids.
        grammar_id: see `FakeWorker`. can_move: its client sends it elsewhere once, if it is told to."""
        sampling = SamplingParams(max_tokens=max_tokens, temperature=0.0, **params)
        ids = array("i", prompt)
        submit = tr.Submit(
            request_id=request_id, prompt_token_ids=memoryview(pack(ids)), params=sampling, can_move=can_move
        )
        self.owner[request_id] = name
        self._submitted[request_id] = c.Tokenized(submit, ids, client_route(request_id), bad_words, grammar_id)
        self._submitted_s[request_id] = self.clock.now()
        self._processes.handle(name, self._submitted[request_id])

    def cancel(self, request_id: str) -> None:
        """Have the client stop its request."""
        name = self.owner[request_id]
        if self.nodes[name].alive:
            self._processes.handle(name, c.ClientRequested(client_route(request_id), tr.Cancel(request_id=request_id)))

    def spans(self, request_id: str) -> dict[str, int]:
        """Tokens of a live request by the instance they lie on."""
        held: dict[str, int] = defaultdict(int)
        node = self.nodes[self.owner[request_id]]
        for request in node.rm.status(node.member, Counters()).requests:
            if request.request_id == request_id:
                for span in request.spans:
                    held[span.instance_id] += span.num_tokens
        return dict(held)

    def handle(self, name: str, event: c.Event) -> None:
        """Have an instance's rManager handle an event, whoever is to have sent it."""
        self._processes.handle(name, event)

    # --- time

    def run(self, seconds: float, until: Callable[[], object] = lambda: False) -> bool:
        """Deliver and tick for a while; true as soon as `until()` is."""
        end = self.clock.now() + seconds
        while self.clock.now() < end:
            for _ in range(self.random.randint(1, MOST_MESSAGES * max(4, len(self.nodes)))):
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
        """A moment passes; who needs it gets a Tick, and clients say now and then that they are there."""
        now = self.clock.advance(TICK_S)
        while self._drawn.ended:
            name = self._drawn.ended.pop()
            self._drawn.deliver_all_of(name)
            self.kill(name)
        self._send_elsewhere()
        for name, node in list(self.nodes.items()):
            if node.runs and node.deadline <= now:
                self._processes.handle(name, c.Tick())
        if now >= self._keep_alive_at:
            self._keep_alive_at = now + KEEP_ALIVE_S
            self._keep_alive()
        for gmanager in self.gmanagers.by_name.values():
            if gmanager.is_due(now):
                self._processes.handle_gmanager(gmanager, c.Tick())
        self.progress.validate(now)

    def _send_elsewhere(self) -> None:
        """What clients were told to send to another instance; to any that runs, if that one does not."""
        running = [name for name, node in self.nodes.items() if node.runs]
        while running and self._drawn.moved:
            request_id, name = self._drawn.moved.pop()
            self.owner[request_id] = name if name in running else running[0]
            first = self._submitted[request_id]
            moved = msgspec.structs.replace(
                first.submit, can_move=False, waited_s=self.clock.now() - self._submitted_s[request_id]
            )
            again = msgspec.structs.replace(first, submit=moved)
            self._processes.handle(self.owner[request_id], again)

    def _keep_alive(self) -> None:
        for request_id, name in list(self.owner.items()):
            if self.nodes[name].runs and not self.outcomes[request_id].done:
                self._processes.handle(name, c.ClientRequested(client_route(request_id), tr.KeepAlive()))

    def deliver(self) -> bool:
        """Let one message arrive; false if none can."""
        return self._drawn.deliver()

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
