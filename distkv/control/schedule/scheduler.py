"""Continuous batching with chunked prefill: which token ranges the next step computes.

A step mixes decodes (one position each) and chunks of whatever else is to do, the oldest request in turn with short
ones (`turns`), under a budget of tokens, and of time where there are decodes (`chunking`). Two steps are in flight, so
that the round trip hides behind compute; what needs a token still unknown to be decided is not planned (docs/design.md,
"Steps that run ahead").
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from distkv.control.performance.observed import ObservedTimes
from distkv.control.request.block import Block
from distkv.control.request.sequence import SeqState, Sequence
from distkv.control.schedule.chunking import Chunk, Chunking
from distkv.control.schedule.turns import Turns
from distkv.token_ids import pack
from distkv.wire.messages.to_worker import PromptLogprobs, RemoteSpan, SeqStep, Step

MAX_IN_FLIGHT = 2
STREAMING_SHARE = 3
"""While rBlocks leave for creditors a chunk takes at most a third of the slots the sequence holds: one third is being
computed, one is leaving, one is ready for the chunk after."""
MAX_PROMPT_LOGPROBS = 4096
"""Most logprobs of prompts that one step reports: to read and to send them takes the event loop two milliseconds."""


@dataclass(slots=True)
class Planned:
    """One sequence's part in a step that was sent. prompt_logprobs: those of the prompt it is to report. remote: the
    spans it attends to."""

    seq: Sequence
    attempt: int
    start: int
    end: int
    sampled: bool
    prompt_logprobs: PromptLogprobs | None
    remote: tuple[RemoteSpan, ...]


@dataclass(slots=True)
class InFlight:
    """A step that was sent and whose result is not back. decodes, chunks: what it computes, for what that costs.
    prompt_logprobs: how many logprobs of prompts it reports. is_remote: it attends to borrowed spans."""

    step_id: int
    planned: dict[str, Planned] = field(default_factory=dict)
    decodes: int = 0
    chunks: list[Chunk] = field(default_factory=list)
    prompt_logprobs: int = 0
    is_remote: bool = False


class Scheduler:
    """Plans steps and remembers those in flight.

    take_slot(): one more slot for a growing sequence, or None. take_spare(count): up to so many that nobody else is
    expected to need. times: what steps were seen to take.
    """

    def __init__(
        self,
        block_tokens: int,
        max_num_seqs: int,
        max_num_batched_tokens: int,
        mixed_step_ratio: float,
        take_slot: Callable[[], int | None],
        take_spare: Callable[[int], list[int]],
    ) -> None:
        self._block_tokens = block_tokens
        self._max_num_seqs = max_num_seqs
        self._max_tokens = max_num_batched_tokens
        self._chunking = Chunking(max_num_batched_tokens, mixed_step_ratio)
        self._turns = Turns()
        self.times = ObservedTimes()
        self._take_slot = take_slot
        self._take_spare = take_spare
        self._last_step_id = 0
        self.in_flight: deque[InFlight] = deque()
        self.stalled: list[Sequence] = []

    @property
    def last_step_id(self) -> int:
        """Of the newest step sent; 0 before the first."""
        return self._last_step_id

    @property
    def last_done_id(self) -> int:
        """All steps up to this one are answered."""
        return self.in_flight[0].step_id - 1 if self.in_flight else self._last_step_id

    @property
    def is_idle(self) -> bool:
        """Whether every step is answered."""
        return not self.in_flight

    def plan(self, running: Iterable[Sequence], now: float) -> Step | None:
        """The next step for those that run, oldest first, or None when two are in flight or nothing can be computed.
        `stalled` are those that need a slot and find none."""
        if len(self.in_flight) >= MAX_IN_FLIGHT:
            return None
        self.stalled = []
        decodes: list[Sequence] = []
        chunks: list[Sequence] = []
        for seq in running:
            if seq.state is SeqState.RUNNING and seq.uncomputed:
                (decodes if seq.is_decoding else chunks).append(seq)
        step = InFlight(self._last_step_id + 1)
        parts: list[SeqStep] = []
        for seq in decodes[: min(self._max_num_seqs, self._max_tokens)]:
            self._add(seq, 1, step, parts, now)
        step.decodes = len(parts)
        allowance = self._chunking.allowance(step.decodes)
        for seq in self._turns.order(chunks):
            if len(parts) >= self._max_num_seqs:
                break
            if (tokens := allowance.tokens(seq.uncomputed.first[0])) < 1:
                break
            if (part := self._add(seq, tokens, step, parts, now)) is not None:
                if not step.chunks:
                    self._turns.was_first(seq)
                step.chunks.append((part.start, part.end))
                allowance.spend(part.start, part.end)
        if not parts:
            return None
        self._last_step_id = step.step_id
        self.in_flight.append(step)
        return Step(step_id=step.step_id, seqs=tuple(parts))

    @property
    def chunk_tokens(self) -> int:
        """Of prompts, that steps in flight compute."""
        return sum(end - start for step in self.in_flight for start, end in step.chunks)

    def has_in_flight(self, seq: Sequence) -> bool:
        """Whether a step that computes something for the sequence is not answered yet."""
        parts = [step.planned.get(seq.request_id) for step in self.in_flight]
        return any(part is not None and part.seq is seq and part.attempt == seq.attempt for part in parts)

    def finished(self, step_id: int, compute_s: float = 0.0) -> InFlight | None:
        """The result of a step is back, which took the worker `compute_s`. None unless it is the oldest one in flight:
        results come in order, once."""
        if not self.in_flight or self.in_flight[0].step_id != step_id:
            return None
        step = self.in_flight.popleft()
        self.observe(step, compute_s)
        return step

    def observe(self, step: InFlight, compute_s: float) -> None:
        """A step like this one took the worker `compute_s`."""
        self._chunking.observe(step.decodes, step.chunks, compute_s)
        prompt_tokens = sum(end - start for start, end in step.chunks) if step.chunks else 0
        self.times.observe(step.decodes, prompt_tokens, compute_s)

    def decodes_only(self, num_running: int) -> bool:
        """Whether as many steps are in flight as may be, of which each decodes all that run."""
        return len(self.in_flight) == MAX_IN_FLIGHT and all(
            not step.chunks
            and len(step.planned) == num_running
            and all(part.sampled and part.attempt == part.seq.attempt for part in step.planned.values())
            for step in self.in_flight
        )

    def repeated(self, num_steps: int) -> None:
        """The results of so many steps are back, each of which was followed by one more, which computes the next
        position of all."""
        self._last_step_id += num_steps
        for step in self.in_flight:
            step.step_id += num_steps
            for part in step.planned.values():
                part.start += num_steps
                part.end += num_steps

    def take_back(self, seq: Sequence) -> None:
        """Undo what the steps in flight do for a sequence: its ranges are to be computed again, in a new attempt."""
        parts = [step.planned.get(seq.request_id) for step in self.in_flight]
        mine = [part for part in parts if part is not None and part.seq is seq and part.attempt == seq.attempt]
        seq.void([(part.start, part.end) for part in mine], MAX_IN_FLIGHT + 1)

    def _add(self, seq: Sequence, budget: int, step: InFlight, parts: list[SeqStep], now: float) -> SeqStep | None:
        part = self._plan_sequence(seq, budget, step)
        if part is not None:
            seq.request.begin(now)
            parts.append(part)
        return part

    def _plan_sequence(self, seq: Sequence, budget: int, step: InFlight) -> SeqStep | None:
        request, placement = seq.request, seq.placement
        start, end = seq.uncomputed.first
        end = min(end, start + budget)
        if placement.has_outgoing:
            self._widen(seq, end - start)
            end = min(end, self._streaming_limit(seq, start))
        if request.report is not None:
            end = min(end, request.report.limit(start, MAX_PROMPT_LOGPROBS - step.prompt_logprobs))
            if end <= start:
                return None
        end = self._find_room(seq, start, end)
        if end <= start:
            if not placement.has_outgoing:
                self.stalled.append(seq)
            return None
        sampled = end == seq.length
        wanted = None if request.report is None else request.report.request(request.tokens, start, end)
        local, remote = placement.block_table(-(-end // self._block_tokens))
        part = SeqStep(
            request_id=seq.request_id,
            version=placement.version,
            attempt=seq.attempt,
            start=start,
            end=end,
            tokens=pack(request.tokens[start:end]),
            local=local,
            remote=remote,
            sample=request.sampling_at(end) if sampled else None,
            history=request.has_history,
            prompt_logprobs=wanted,
        )
        if wanted is not None:
            step.prompt_logprobs += wanted.num_tokens * (1 + wanted.top)
        step.is_remote = step.is_remote or bool(remote)
        step.planned[seq.request_id] = Planned(seq, seq.attempt, start, end, sampled, wanted, remote)
        seq.planned(start, end)
        return part

    def _widen(self, seq: Sequence, num_tokens: int) -> None:
        """A sequence that was admitted with few slots takes more while nobody needs them: as many as chunks of so many
        tokens leave through. Those that no block waits for any more go back by themselves."""
        placement = seq.placement
        chunk = -(-num_tokens // self._block_tokens)
        wanted = min(STREAMING_SHARE * chunk - placement.num_local_slots, placement.num_without_slot)
        if wanted > 0:
            placement.add_slots(self._take_spare(wanted))

    def _streaming_limit(self, seq: Sequence, start: int) -> int:
        """Where a chunk must end so that rBlocks can leave while the next chunk is computed."""
        first = start // self._block_tokens
        return (first + max(1, seq.placement.num_local_slots // STREAMING_SHARE)) * self._block_tokens

    def _find_room(self, seq: Sequence, start: int, end: int) -> int:
        """Give each block of [start, end) a slot; returns how far the slots reach."""
        block_tokens, blocks = self._block_tokens, seq.placement.blocks
        for number in range(start // block_tokens, -(-end // block_tokens)):
            block = blocks[number]
            if block.slot is None and not self.give_slot(seq, block):
                return min(end, number * block_tokens)
        return end

    def give_slot(self, seq: Sequence, block: Block) -> bool:
        """A slot to compute a block in; false if there is none."""
        if seq.placement.put_unassigned(block):
            return True
        slot = self._take_slot() if block.debt is None else None
        if slot is not None:
            seq.placement.put(block, slot)
        return slot is not None
