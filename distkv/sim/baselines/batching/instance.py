"""One instance of a baseline: continuous batching with chunked prefill over paged memory, by the rules of vLLM.

Requests begin in the order in which they came, when there are rBlocks for all of the prompt and a watermark besides.
Each step has all decodes and chunks of prompts, or one of both, by the given rule (`prompts`). Who needs an rBlock for
its next token when there is none takes it from the one that came last, which is computed again later.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from distkv.config import ControlSettings
from distkv.control.performance.model import UNCROWDED
from distkv.control.schedule.chunking import Chunk
from distkv.sim.baselines.batching.burst import Burst, ends_of_steps, quiet_steps, step_work
from distkv.sim.baselines.batching.prompts import Prompts, chunking_of
from distkv.sim.baselines.batching.queue import Queue
from distkv.sim.baselines.batching.served import Served
from distkv.sim.timed.agenda import Action, Agenda, Entry
from distkv.sim.timed.engine.step_work import StepTimes
from distkv.wire.messages.counters import Counters

WATERMARK = 0.01
"""Of a pool: vLLM leaves so much free when a request begins, so that those that run can grow."""


@dataclass(slots=True, eq=False)
class Host:
    """instances: on it. traffic: of those of them that compute (`PerformanceModel.traffic`), where that slows others
    down."""

    instances: list[BatchingInstance] = field(default_factory=list)
    traffic: dict[BatchingInstance, float] = field(default_factory=dict)


class BatchingInstance:
    """alive: whether its process is. free: rBlocks. running: in order of arrival. queue: those that are to begin.
    coming, leaving: rBlocks that are kept for requests that do not run here, for they are still to arrive or were left
    behind. elsewhere: those that have their keys and values at another instance, and what reads them from there when
    there is memory here; `arrived` says that it has. ended: takes who has got its last token. prefilled: takes who has
    got its first, and more to come, if anybody wants to know."""

    def __init__(
        self,
        name: str,
        num_blocks: int,
        times: StepTimes,
        settings: ControlSettings,
        agenda: Agenda,
        host: Host,
        said_s: float,
        ended: Callable[[Served], None],
        prompts: Prompts,
    ) -> None:
        """said_s: how long a token is on its way from the engine to its client. prompts: how they get into steps."""
        self.name = name
        self.alive = True
        self.num_blocks = self.free = num_blocks
        self.block_tokens = times.profile.block_tokens
        self.watermark_blocks = int(WATERMARK * num_blocks)
        self.running: list[Served] = []
        self.queue = Queue(self.block_tokens)
        self.coming: dict[Served, int] = {}
        self.leaving: dict[Served, int] = {}
        self.counters = Counters()
        self.ended = ended
        self.prefilled: Callable[[Served], None] | None = None
        self.elsewhere: dict[Served, Action] = {}
        self._times = times
        self._settings = settings
        self._agenda = agenda
        self._host = host
        self._said_s = said_s
        self._prompts_alone = prompts == "alone"
        self._chunking = chunking_of(prompts, settings)
        self._burst: Burst | None = None
        self._entry: Entry | None = None
        self._then: list[Action] = []
        self._is_woken = False
        self._slow = 1.0
        host.instances.append(self)

    # --- what others do with it

    def blocks_for(self, tokens: int) -> int:
        """rBlocks that so many tokens need."""
        return -(-tokens // self.block_tokens)

    @property
    def has_seat(self) -> bool:
        """Whether one more could run."""
        return len(self.running) + len(self.coming) < self._settings.max_num_seqs

    def submit(self, one: Served) -> None:
        """A request has come that was expected, unless it was dropped."""
        if self.queue.arrive(one):
            self.wake()

    def settle(self) -> None:
        """Account for all steps that have ended by now."""
        burst = self._burst
        if burst is not None and not burst.is_done:
            done = bisect_right(burst.ends, self._agenda.now(), lo=burst.done)
            if done > burst.done:
                self._account(burst, done)

    def wake(self) -> None:
        """Memory or a request has come: who waits may begin when the step under way ends."""
        if self._burst is not None:
            self.settle()
            if self._can_begin():
                self.cut()
        elif not self._is_woken and self.alive:
            self._is_woken = True
            self._agenda.at(self._agenda.now(), self._awake)

    def cut(self) -> None:
        """Plan anew when the step under way ends."""
        self.settle()
        burst = self._burst
        if burst is not None and burst.done + 1 < len(burst.ends):
            del burst.ends[burst.done + 1 :]
            self._await_end(burst)

    def between_steps(self, action: Action) -> None:
        """Have it happen when no step is under way, before the next is planned."""
        if self._burst is None:
            action()
        else:
            self.cut()
            self._then.append(action)

    def reserve(self, one: Served, blocks: int) -> bool:
        """Keep so many more rBlocks for a request that is to come; false if there are not so many."""
        self.cut()  # steps to come were sure of them
        if self.free - blocks < self.watermark_blocks or not (one in self.coming or self.has_seat):
            return False
        self.free -= blocks
        self.coming[one] = self.coming.get(one, 0) + blocks
        return True

    def arrived(self, one: Served) -> None:
        """It is here, with what was kept for it, and runs from the next step on; or it is over."""
        self._join(one, self.coming.pop(one))

    def _join(self, one: Served, blocks: int) -> None:
        one.blocks = blocks
        if one.is_over:
            self._give_back(one)
        else:
            insort(self.running, one, key=_order)
            self.cut()
        self.wake()

    def take_out(self, one: Served) -> None:
        """Between steps: it runs here no more, but what it has stays."""
        self.running.remove(one)
        self.leaving[one] = one.blocks
        one.blocks = 0

    def take_in_again(self, one: Served) -> None:
        """Who was taken out runs here after all, with what it left behind; or it is over."""
        self._join(one, self.leaving.pop(one))

    def release(self, one: Served) -> None:
        """What was kept for it, or left behind, is free."""
        self.free += self.coming.pop(one, 0) + self.leaving.pop(one, 0)
        self.wake()

    def drop(self, one: Served) -> None:
        """A request is over before its end, wherever it is here. What is on its way here, or away, ends by itself."""
        self.elsewhere.pop(one, None)
        if not self.queue.remove(one) and one in self.running:
            self.between_steps(lambda: self._end_early(one))

    # --- faults

    def slow_down(self, factor: float) -> None:
        """From the next step on everything takes so many times as long as the profile says."""
        self._slow = factor
        self.cut()

    def die(self) -> list[Served]:
        """The process ends, and its memory with it; returns who ran, waited or was on the way here."""
        self.settle()
        self.alive = False
        if self._entry is not None:
            self._entry.cancel()
        self._burst = self._entry = None
        self._then.clear()
        self._host.traffic.pop(self, None)
        found = [*self.running, *self.queue.clear()]
        for one in self.running:
            one.blocks = 0
        for held in (self.running, self.coming, self.leaving, self.elsewhere):
            held.clear()
        self.free = self.num_blocks
        return found

    def restart(self) -> None:
        """A new process, with an empty pool."""
        self.alive = True

    def validate(self) -> None:
        """Every rBlock is free or somebody's."""
        held = sum(one.blocks for one in self.running) + sum(self.coming.values()) + sum(self.leaving.values())
        assert 0 <= self.free == self.num_blocks - held, f"{self.name}: {self.free} of {self.num_blocks}, {held} held"
        assert all(one.blocks * self.block_tokens >= one.computed for one in self.running)
        self.queue.validate()

    # --- steps

    def _awake(self) -> None:
        self._is_woken = False
        if self._burst is None and self.alive:
            self._begin()

    def _begin(self) -> None:
        """The next step, or as many as are sure to be alike."""
        actions, self._then = self._then, []
        for action in actions:
            action()
        self._grow()
        self._fetch()
        decodes = [one for one in self.running if one.is_decoding]
        chunks = self._chunks(decodes)
        if chunks and self._prompts_alone:
            decodes = []
        if not decodes and not chunks:
            self._host.traffic.pop(self, None)
            return
        now, work = self._agenda.now(), step_work(self._times, decodes, chunks)
        is_quiet = not chunks and len(decodes) == len(self.running) and not self._can_begin()
        may_crowd = self._times.profile.can_crowd and len(self._host.instances) > 1
        steps = quiet_steps(decodes, self.block_tokens, self.free) if is_quiet and not may_crowd else 1
        times, rest_s = self._times.crowding(work, self._host.traffic, self) if may_crowd else UNCROWDED
        factor = self._slow * times
        self._burst = Burst(now, ends_of_steps(self._times, now, work, steps, factor, rest_s), decodes, chunks)
        self._await_end(self._burst)

    def _await_end(self, burst: Burst) -> None:
        if self._entry is not None:
            self._entry.cancel()
        self._entry = self._agenda.at(burst.ends[-1], self._end)

    def _end(self) -> None:
        self.settle()
        self._burst = self._entry = None
        self._begin()

    def _grow(self) -> None:
        """Room for the next token of each that decodes, oldest first."""
        for one in list(self.running):
            while one.blocks and one.is_decoding and self.blocks_for(one.length) > one.blocks + self.free:
                self._preempt(self.running[-1])
            if one.blocks and one.is_decoding:
                self._take(one, self.blocks_for(one.length) - one.blocks)

    def _chunks(self, decodes: list[Served]) -> list[tuple[Served, Chunk]]:
        """Parts of prompts for the next step, of those that began before, then of those that begin."""
        chunks: list[tuple[Served, Chunk]] = []
        begun = deque(one for one in self.running if not one.is_decoding)
        if not begun and not self._can_begin():
            return chunks
        allowance = self._chunking.allowance(len(decodes))
        while begun or self._can_begin():
            following = begun[0] if begun else self.queue.first
            assert following is not None
            tokens = allowance.tokens(following.computed)
            would_be_cut = following.length - following.computed > tokens
            if tokens < 1 or (self._prompts_alone and would_be_cut and chunks):
                break
            one = begun.popleft() if begun else self._start()
            chunk = one.computed, min(one.length, one.computed + tokens)
            allowance.spend(*chunk)
            chunks.append((one, chunk))
        return chunks

    def _can_begin(self) -> bool:
        """Whether who waits longest has what it needs. One alone may have the whole pool."""
        first = self.queue.first
        if first is None or not self.has_seat:
            return False
        spare = self.free - self.blocks_for(first.length)
        return spare >= (0 if self.free == self.num_blocks else self.watermark_blocks)

    def _start(self) -> Served:
        one = self.queue.pop_first()
        if one.began_s is None:
            one.began_s = self._agenda.now()
        self._take(one, self.blocks_for(one.length))
        insort(self.running, one, key=_order)
        self._fetch()
        return one

    def _fetch(self) -> None:
        """Those that wait and have their keys and values elsewhere need memory for these, and no step."""
        while self.queue.first in self.elsewhere and self._can_begin():
            one = self.queue.pop_first()
            blocks = self.blocks_for(one.length)
            self.free -= blocks
            self.coming[one] = blocks
            self.elsewhere.pop(one)()

    def _preempt(self, one: Served) -> None:
        self.running.remove(one)
        self.counters.preemptions += 1
        self.counters.recomputed_tokens += one.computed
        self._give_back(one)
        one.computed = 0
        one.lives += 1
        self.queue.put_back(one)

    def _take(self, one: Served, blocks: int) -> None:
        one.blocks += blocks
        self.free -= blocks

    def _give_back(self, one: Served) -> None:
        self.free += one.blocks
        one.blocks = 0

    def _end_early(self, one: Served) -> None:
        if one in self.running:
            self.running.remove(one)
            self._give_back(one)
        else:  # it was preempted meanwhile
            self.queue.remove(one)

    # --- what steps have done

    def _account(self, burst: Burst, done: int) -> None:
        """The steps of a burst up to this one have ended."""
        before, burst.done = burst.done, done
        ends = burst.ends[before:done]
        begins = [burst.ends[before - 1] if before else burst.began_s, *ends[:-1]]
        chunks = [chunk for _, chunk in burst.chunks]
        for began_s, end_s in zip(begins, ends, strict=True):
            self._chunking.observe(len(burst.decodes), chunks, end_s - began_s)
            self.counters.model_s += end_s - began_s
        self.counters.steps += len(ends)
        said = [end_s + self._said_s for end_s in ends]
        for one in burst.decodes:
            self._decoded(one, said, burst.is_done)
        for one, chunk in burst.chunks:
            self._chunk_computed(one, chunk, said)
        if burst.is_done:
            for one in [*burst.decodes, *(one for one, _ in burst.chunks)]:
                self._after(one)

    def _decoded(self, one: Served, said: list[float], is_done: bool) -> None:
        steps = len(said)
        self.counters.attended_tokens += steps * one.length + steps * (steps - 1) // 2
        self.counters.generation_tokens += steps
        one.note(said)
        one.computed += steps
        one.generated += steps
        # The step under way has taken what it needs.
        self._take(one, self.blocks_for(one.computed if is_done else one.length) - one.blocks)

    def _chunk_computed(self, one: Served, chunk: Chunk, said: list[float]) -> None:
        start, end = chunk
        self.counters.attended_tokens += (end - start) * (start + end + 1) // 2
        one.computed = end
        if end == one.length:
            one.note(said)
            one.generated += 1
            self.counters.generation_tokens += 1

    def _after(self, one: Served) -> None:
        """Whether it goes on."""
        if not one.left:
            self.running.remove(one)
            self._give_back(one)
            self.ended(one)
        elif self.prefilled is not None and one.is_decoding and one.generated == 1:
            self.prefilled(one)


def _order(one: Served) -> int:
    return one.order
