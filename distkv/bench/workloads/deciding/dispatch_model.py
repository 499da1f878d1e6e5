"""A cluster as a model: instances that compute in modelled time, and a gManager's real ledger and dispatcher.

An instance admits by memory, oldest first, and batches continuously: each step has all decodes, and beside them as much
prefill as makes it twice as long. Every half second it sends the heartbeat that a real one would. What a request lacks
where it is lies at the instance with most room, if that has any.
"""

from __future__ import annotations

import heapq
import itertools
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random

from distkv.control.cluster.advice import Advice
from distkv.control.cluster.dispatch.registry import dispatcher_named
from distkv.control.cluster.ledger import Entry, Ledger
from distkv.control.cluster.policy.contract import ContractPolicy
from distkv.control.performance.observed import ObservedTimes
from distkv.sim.trace import TraceRequest
from distkv.types import DispatchName
from distkv.wire.messages.common import Member
from distkv.wire.messages.to_gmanager import Heartbeat, Locate

BLOCK_TOKENS = 16
HEARTBEAT_S = 0.5
BASE_S, ROW_S, KEY_S, PROMPT_S = 0.012, 0.0006, 1.5e-6, 0.0002
"""Of a step: reading the weights, a sequence, a token of context, a token of a prompt."""
REMOTE_S = 1.5e-6
"""What a token of context costs more where it lies elsewhere."""
MIXED = 2.0
CHUNK_TOKENS = 1024
MAX_TOKENS_TIMES = (1.25, 2.0, 4.0, 8.0)
"""Clients allow so many times the output that they get, by turns: what it will be nobody knows."""
PASSED_S = 2.0
"""Those that fit pass the oldest for so long."""
SEEN = 64


def lognormal_trace(count: int, median_tokens: int, per_s: float, seed: int) -> list[TraceRequest]:
    """Requests that arrive at random, `per_s` a second on average: prompts of this median and outputs of half of it,
    lognormal, the longest some twenty times the median."""
    draw = Random(seed)
    requests: list[TraceRequest] = []
    now_s = 0.0
    for _ in range(count):
        prompt, output = (
            max(1, round(min(20.0, draw.lognormvariate(0.0, 1.2)) * median))
            for median in (median_tokens, median_tokens / 2)
        )
        requests.append(TraceRequest(now_s, prompt, output))
        now_s += draw.expovariate(per_s)
    return requests


@dataclass(slots=True, eq=False)
class Served:
    """A request on its way. prefilled, generated: tokens. lent_by: who holds what of it lies elsewhere."""

    arrival_s: float
    prompt: int
    output: int
    prefilled: int = 0
    generated: int = 0
    remote: int = 0
    lent_by: ModelInstance | None = None
    first_s: float = 0.0
    last_s: float = 0.0

    @property
    def need(self) -> int:
        return self.prompt + self.output

    @property
    def context(self) -> int:
        return self.prefilled + self.generated


@dataclass(slots=True, eq=False)
class ModelInstance:
    """speed: how many times as fast as the usual one. used: tokens of the pool that are kept for those that run, their
    outputs to come included, which nobody else knows. lent: to those that run elsewhere."""

    name: str
    pool_tokens: int
    speed: float = 1.0
    used: int = 0
    lent: int = 0
    seq: int = 0
    step_s: float = 0.0
    is_stepping: bool = False
    waiting: deque[Served] = field(default_factory=deque)
    running: list[Served] = field(default_factory=list)
    outputs: deque[int] = field(default_factory=lambda: deque(maxlen=SEEN))
    times: ObservedTimes = field(default_factory=ObservedTimes)

    @property
    def free(self) -> int:
        return self.pool_tokens - self.used - self.lent

    def heartbeat(self) -> Heartbeat:
        """What it tells."""
        self.seq += 1
        waiting = list(itertools.islice(self.waiting, 16))
        usual = sum(self.outputs) // len(self.outputs) if self.outputs else 0
        held = sum(max(0, one.prompt + one.generated - one.remote) for one in self.running)
        computing = [one.prompt - one.prefilled for one in itertools.chain(self.running, self.waiting)]
        return Heartbeat(
            instance_id=self.name,
            incarnation=1,
            seq=self.seq,
            base=self.seq - 1,
            full=True,
            total_blocks=self.pool_tokens // BLOCK_TOKENS,
            free_blocks=(self.pool_tokens - self.lent - held) // BLOCK_TOKENS,
            lendable_blocks=max(0, self.free) // BLOCK_TOKENS,
            running=len(self.running),
            waiting=len(self.waiting),
            waiting_blocks=sum(one.prompt for one in self.waiting) // BLOCK_TOKENS,
            step_s=self.step_s,
            context_tokens=sum(one.context for one in self.running),
            prefill_tokens=sum(computing),
            borrowed_blocks=sum(one.remote for one in self.running) // BLOCK_TOKENS,
            lent_blocks=self.lent // BLOCK_TOKENS,
            waiting_sizes=tuple(one.prompt // BLOCK_TOKENS for one in waiting),
            decode_base_s=self.times.base_s,
            decode_row_s=self.times.row_s,
            prompt_token_s=self.times.prompt_token_s,
            growing_blocks=len(self.running) * (usual // 2) // BLOCK_TOKENS,
            output_tokens=usual,
        )


class ModelCluster:
    """Plays a trace to instances of these pools and speeds. done: the requests that have ended."""

    def __init__(self, pools: Sequence[int], speeds: Sequence[float], dispatch: DispatchName, seed: int) -> None:
        self.instances = {
            f"i{index}": ModelInstance(f"i{index}", pool, speed)
            for index, (pool, speed) in enumerate(zip(pools, speeds, strict=True))
        }
        self._ledger = Ledger()
        dispatcher = dispatcher_named(dispatch, Random(seed), shares_memory=True)
        self._advice = Advice(self._ledger, ContractPolicy(), dispatcher, incarnation=1)
        for name, one in self.instances.items():
            blocks = one.pool_tokens // BLOCK_TOKENS
            member = Member(
                instance_id=name,
                incarnation=1,
                address=f"sim://{name}",
                state="ready",
                block_tokens=BLOCK_TOKENS,
                total_blocks=blocks,
                lendable_blocks=blocks,
                free_blocks=blocks,
            )
            self._ledger.add(Entry(member, 0.0, state="ready"))
        self.done: list[Served] = []
        self._now = 0.0
        self._events: list[tuple[float, int, str, object]] = []
        self._count = itertools.count()
        self._allowed = itertools.cycle(MAX_TOKENS_TIMES)

    def play(self, trace: Sequence[TraceRequest]) -> list[Served]:
        """All requests, until the last has ended."""
        for index, one in enumerate(self.instances.values()):
            self._at(HEARTBEAT_S * index / len(self.instances), "beat", one)
        for request in trace:
            self._at(request.arrival_s, "arrival", request)
        while len(self.done) < len(trace):
            self._now, _, what, subject = heapq.heappop(self._events)
            if isinstance(subject, TraceRequest):
                self._arrive(subject)
            elif isinstance(subject, ModelInstance) and what == "beat":
                self._beat(subject)
            elif isinstance(subject, ModelInstance):
                subject.is_stepping = False
                self._step(subject)
        return self.done

    def _at(self, when: float, what: str, subject: object) -> None:
        heapq.heappush(self._events, (when, next(self._count), what, subject))

    def _beat(self, one: ModelInstance) -> None:
        self._ledger.apply(one.heartbeat())
        self._ledger.file(self._ledger.entries[one.name])
        self._at(self._now + HEARTBEAT_S, "beat", one)
        self._step(one)  # memory of others may have come free

    def _arrive(self, request: TraceRequest) -> None:
        allowed = round(next(self._allowed) * request.output_tokens)
        prompt = request.prompt_tokens
        locate = Locate(request_id="r", num_tokens=prompt + allowed, prompt_tokens=prompt)
        chosen = self.instances[self._advice.dispatch(locate, len(self.instances), self._now).instance_id]
        chosen.waiting.append(Served(self._now, request.prompt_tokens, request.output_tokens))
        self._step(chosen)

    # --- an instance

    def _step(self, one: ModelInstance) -> None:
        """Admit, then begin the next step, unless one is under way."""
        if one.is_stepping:
            return
        self._admit(one)
        if not one.running:
            return
        decodes = [seq for seq in one.running if seq.prefilled == seq.prompt]
        context = sum(seq.context for seq in decodes)
        remote = sum(seq.remote for seq in decodes)
        alone_s = (BASE_S + ROW_S * len(decodes) + KEY_S * context + REMOTE_S * remote) / one.speed
        budget, num_decodes = CHUNK_TOKENS, len(decodes)
        if decodes:
            budget = min(budget, max(8, int((MIXED - 1) * alone_s * one.speed / PROMPT_S)))
        chunked = 0
        for seq in sorted((seq for seq in one.running if seq.prefilled < seq.prompt), key=_left):
            tokens = min(seq.prompt - seq.prefilled, budget - chunked)
            seq.prefilled += tokens
            chunked += tokens
            if seq.prefilled == seq.prompt:
                decodes.append(seq)
            if chunked == budget:
                break
        step_s = alone_s + PROMPT_S * chunked / one.speed
        one.step_s = step_s if not one.step_s else 0.9 * one.step_s + 0.1 * step_s
        one.times.observe(num_decodes, chunked, step_s)
        for seq in decodes:
            self._generate(one, seq, self._now + step_s)
        one.is_stepping = True
        self._at(self._now + step_s, "step", one)

    def _generate(self, one: ModelInstance, seq: Served, when: float) -> None:
        seq.generated += 1
        if seq.generated == 1:
            seq.first_s = when
        if seq.generated < seq.output:
            return
        seq.last_s = when
        one.running.remove(seq)
        one.used -= seq.need - seq.remote
        one.outputs.append(seq.output)
        if seq.lent_by is not None:
            seq.lent_by.lent -= seq.remote
        self.done.append(seq)

    def _admit(self, one: ModelInstance) -> None:
        """Oldest first; those behind one that has waited for short only may pass it if they fit."""
        for seq in list(one.waiting):
            if self._find_memory(one, seq):
                one.waiting.remove(seq)
                one.running.append(seq)
            elif self._now - seq.arrival_s > PASSED_S:
                return

    def _find_memory(self, one: ModelInstance, seq: Served) -> bool:
        if seq.need > one.free:
            others = [other for other in self.instances.values() if other is not one]
            creditor = max(others, key=lambda other: other.free, default=None)
            remote = seq.need - max(0, one.free)
            if seq.need <= one.pool_tokens or creditor is None or creditor.free < remote:
                return False
            seq.remote, seq.lent_by = remote, creditor
            creditor.lent += remote
        one.used += seq.need - seq.remote
        return True


def _left(seq: Served) -> int:
    return seq.prompt - seq.prefilled
