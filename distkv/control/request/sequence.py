"""One request inside its debtor: its tokens, what of them is computed, and where each rBlock lies."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from distkv.control.request.output import OutputText
from distkv.control.request.placement import Block, BlockCounts, BlockTable, Debt
from distkv.control.request.prompt_report import PromptReport
from distkv.control.request.ranges import Ranges
from distkv.types import SamplingParams
from distkv.wire.messages.common import Run
from distkv.wire.messages.to_worker import RemoteSpan, Sampling


class SeqState(Enum):
    """waiting: holds nothing, or what a loss left it, until memory is found. acquiring: a borrow for it is under way.
    running: in the batch."""

    WAITING = "waiting"
    ACQUIRING = "acquiring"
    RUNNING = "running"


@dataclass(slots=True, eq=False)
class Sequence:
    """All that an rManager knows of a request it owns.

    tokens: prompt and what was sampled and seen. pending: tokens sampled by steps whose results are not back.
    uncomputed: positions whose KV no sent step computes. unassigned_slots: local slots it owns that hold nothing yet.
    high_water: how far it was ever computed. unsettled: blocks may have lost their place. began: when the first step
    that computes anything for it was sent. sampling: what its steps say of how to sample; has_history: whether that
    looks at the tokens before. report: of the logprobs of its prompt, if they are wanted.
    """

    request_id: str
    route: bytes
    arrival: float
    params: SamplingParams
    seed: int
    tokens: list[int]
    prompt_tokens: int
    output: OutputText
    block_tokens: int
    deadline: float | None = None
    pending: int = 0
    uncomputed: Ranges = field(default_factory=Ranges)
    blocks: list[Block] = field(default_factory=list)
    debts: list[Debt] = field(default_factory=list)
    unassigned_slots: list[int] = field(default_factory=list)
    state: SeqState = SeqState.WAITING
    version: int = 0
    attempt: int = 0
    retry_at: float = 0.0
    retries: int = 0
    starved_since: float | None = None
    high_water: int = 0
    unsettled: bool = False
    began: float | None = None
    sampling: Sampling = field(init=False)
    has_history: bool = field(init=False)
    report: PromptReport | None = field(init=False, default=None)
    counts: BlockCounts = field(default_factory=BlockCounts)
    _table: BlockTable = field(default_factory=BlockTable)

    def __post_init__(self) -> None:
        params = self.params
        self.sampling = Sampling(
            temperature=params.temperature,
            top_k=params.top_k,
            top_p=params.top_p,
            seed=self.seed,
            min_p=params.min_p,
            repetition_penalty=params.repetition_penalty,
            presence_penalty=params.presence_penalty,
            frequency_penalty=params.frequency_penalty,
            logit_bias=params.logit_bias,
            prompt_tokens=self.prompt_tokens,
            logprobs=params.logprobs,
        )
        self.has_history = (
            params.repetition_penalty != 1 or params.presence_penalty != 0 or params.frequency_penalty != 0
        )
        if params.prompt_logprobs is not None:
            self.report = PromptReport(self.prompt_tokens, params.prompt_logprobs)

    @property
    def age(self) -> tuple[float, str]:
        """Sorts sequences oldest first."""
        return self.arrival, self.request_id

    @property
    def length(self) -> int:
        """Tokens known or about to be."""
        return len(self.tokens) + self.pending

    @property
    def num_generated(self) -> int:
        return self.length - self.prompt_tokens

    @property
    def can_grow(self) -> bool:
        """Whether another token may be sampled after those on their way."""
        return self.num_generated < self.params.max_tokens

    @property
    def num_local_slots(self) -> int:
        """Slots of the own pool this sequence holds."""
        return self.counts.local + len(self.unassigned_slots)

    @property
    def holds_kv(self) -> bool:
        """Whether some of it lies somewhere, so that it would resume rather than begin."""
        return self.counts.local > 0 or bool(self.debts)

    @property
    def has_outgoing(self) -> bool:
        """Whether blocks are still to be computed for, or are on their way to, a creditor."""
        return any(len(debt.blocks) > debt.filled for debt in self.debts)

    @property
    def surplus(self) -> int:
        """Spare slots that no block of the sequence waits for."""
        return max(0, len(self.unassigned_slots) - self.counts.awaiting_slot)

    @property
    def ends_in_transit(self) -> bool:
        """Whether the last block to be computed is to leave again, so that a slot must be kept for it."""
        if self.counts.awaiting_slot == self.counts.unplaced:
            return False
        last = next(b for b in reversed(self.blocks) if b.slot is None and b.moving_from is None and not b.arrived)
        return last.debt is not None

    # --- blocks: every change of one is made here

    def cover(self, num_tokens: int) -> None:
        """Have a logical block for each of the first `num_tokens` positions."""
        known, wanted = len(self.blocks), -(-num_tokens // self.block_tokens)
        if known < wanted:
            self.blocks.extend(Block(number) for number in range(known, wanted))
            self.counts.add(wanted - known)

    def clear(self) -> list[Block]:
        """Have no blocks; returns those there were."""
        blocks, self.blocks, self.counts, self._table = self.blocks, [], BlockCounts(), BlockTable()
        return blocks

    def _changed(self, block: Block) -> None:
        self.counts.update(block)
        self._table.forget_from(block.number)

    def put(self, block: Block, slot: int) -> None:
        """The block is to be computed into a slot of the own pool."""
        block.slot = slot
        self._changed(block)

    def mark_full(self, block: Block) -> None:
        """The block is full, every layer written."""
        block.full = True
        self.counts.update(block)

    def assign(self, block: Block, debt: Debt) -> None:
        """Let a block go to the next position of a borrowed span."""
        if block.arrived:
            block.moving_from, block.moving_from_index, block.arrived = block.debt, block.index, False
        block.debt, block.index = debt, len(debt.blocks)
        debt.blocks.append(block)
        self._changed(block)

    def unassign(self, block: Block) -> None:
        """The block goes nowhere: it stays where it is, if it is anywhere."""
        self.unsettled = True
        block.debt, block.index = block.moving_from, block.moving_from_index
        block.arrived = block.moving_from is not None
        block.moving_from = None
        self._changed(block)

    def settle_at_creditor(self, block: Block) -> tuple[int | None, Debt | None]:
        """The block lies in its debt now; returns the slot, or the debt it lay in before, that it leaves."""
        left = block.slot, block.moving_from
        block.slot, block.moving_from, block.arrived = None, None, True
        self._changed(block)
        return left

    def settle_here(self, block: Block, slot: int) -> None:
        """The block is back in the own pool."""
        block.slot, block.debt, block.arrived = slot, None, False
        self._changed(block)
        self.version += 1

    def lose(self, block: Block, debt: Debt) -> bool:
        """A debt the block lies in, or is to go to, is gone; true if its KV is gone too and must be computed again."""
        if block.moving_from is debt:
            block.moving_from = None
            lost = block.debt is not None and not block.arrived and block.slot is None
        elif block.debt is debt and block.arrived:
            block.debt, block.arrived = None, False
            lost = True
        else:
            if block.debt is debt:
                self.unassign(block)
            return False
        if lost:
            block.full, block.checksum = False, None
            self.uncomputed.add(*self.span_of(block))
        self._changed(block)
        return lost

    def vacate(self) -> list[int]:
        """Take the slots from blocks that must wait for blocks before them: those that hold nothing, and those not
        full yet that are to leave. Returns the slots. No step in flight may compute for this life."""
        if not self.uncomputed:
            return []
        slots = []
        for block in self.blocks[self.uncomputed.first[0] // self.block_tokens + 1 :]:
            start, end = self.span_of(block)
            if block.slot is None or block.full or start >= end:
                continue
            if block.debt is not None or self.uncomputed.covers(start, end):
                self.uncomputed.add(start, end)
                slots.append(block.slot)
                block.slot = None
                self._changed(block)
                self.version += 1
        return slots

    # --- where they are

    def unplaced(self) -> list[Block]:
        """Blocks that have no place yet, ascending."""
        return [b for b in self.blocks if not b.has_place] if self.counts.unplaced else []

    def movable(self) -> list[Block]:
        """Sealed local blocks with no other destination, oldest first; the tail never is one."""
        return [b for b in self.blocks if b.movable] if self.counts.movable else []

    def span_of(self, block: Block) -> tuple[int, int]:
        """Positions of a block, the last one clipped to the sequence."""
        start = block.number * self.block_tokens
        return start, min(start + self.block_tokens, self.length)

    def local_slots(self) -> list[int]:
        """Every slot of the own pool this sequence holds."""
        return [b.slot for b in self.blocks if b.slot is not None] + self.unassigned_slots

    def block_table(self, num_blocks: int) -> tuple[tuple[Run, ...], tuple[RemoteSpan, ...]]:
        """Where the first `num_blocks` blocks lie: runs of the own pool, and parts of borrowed spans."""
        return self._table.of(self.blocks, num_blocks)

    def validate(self) -> None:
        """Every block has at most one live place; debts and blocks name each other."""
        for number, block in enumerate(self.blocks):
            assert block.number == number
            if block.arrived:
                assert block.debt is not None and block.slot is None and block.moving_from is None
            if block.debt is not None:
                assert block.debt in self.debts and block.debt.blocks[block.index] is block
            if block.moving_from is not None:
                assert block.moving_from in self.debts and block.slot is None
        for debt in self.debts:
            assert debt.filled >= 0 and debt.filled + debt.num_ready <= len(debt.blocks) <= debt.capacity
        self.counts.validate(self.blocks)
        assert self._table.is_of(self.blocks), "a block changed its place unseen"
        slots = self.local_slots()
        assert len(slots) == len(set(slots)), "a slot is held twice"
        assert len(slots) == self.num_local_slots
        for start, end in self.uncomputed:
            assert 0 <= start < end <= self.length
