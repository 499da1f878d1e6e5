"""One request inside its debtor: what of it is computed, and where that lies."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence as Seq
from enum import Enum

from distkv.control.request.answer.output import OutputText
from distkv.control.request.block import Block, Cleared, Debt
from distkv.control.request.placement import Placement
from distkv.control.request.ranges import Ranges
from distkv.control.request.request import Request


class SeqState(Enum):
    """waiting: holds nothing, or what a loss left it, until memory is found. acquiring: a borrow for it is under way.
    running: in the batch."""

    WAITING = "waiting"
    ACQUIRING = "acquiring"
    RUNNING = "running"


class Sequence:
    """A request and how far it has got. Its memory is `placement`'s; by which door its state changes is `Sequences`.

    uncomputed: positions whose KV no sent step computes. pending: tokens sampled by steps whose results are not back.
    attempt: grows whenever steps in flight are void. high_water: how far it was ever computed. retry_at, retries: when
    one that waits may try again, and how often it has. starved_since: since when the live instances cannot hold it.
    max_length: its tokens when it ends at the latest. is_uniform: nothing ends it but that, and its tokens come with
    nothing else.
    """

    __slots__ = (
        "age",
        "attempt",
        "high_water",
        "is_uniform",
        "max_length",
        "output",
        "pending",
        "placement",
        "request",
        "request_id",
        "retries",
        "retry_at",
        "starved_since",
        "state",
        "uncomputed",
    )

    def __init__(self, request: Request, output: OutputText, block_tokens: int, attempt: int = 0) -> None:
        """Nothing of it is computed yet, be it new or taken over."""
        self.request = request
        self.request_id = request.request_id
        self.age = request.age
        self.output = output
        self.max_length = request.prompt_tokens + request.params.max_tokens
        self.is_uniform = request.is_plain and output.ends_at_length
        self.placement = Placement(block_tokens)
        self.state = SeqState.WAITING
        self.attempt = attempt
        self.pending = 0
        self.uncomputed = Ranges([(0, len(request.tokens))])
        self.high_water = 0
        self.retry_at = 0.0
        self.retries = 0
        self.starved_since: float | None = None

    @property
    def size_blocks(self) -> int:
        """rBlocks that all its known tokens take."""
        return -(-len(self.request.tokens) // self.placement.block_tokens)

    @property
    def num_blocks(self) -> int:
        """rBlocks of its tokens, those about to be known included."""
        placement = self.placement
        return max(len(placement.blocks), -(-self.length // placement.block_tokens))

    @property
    def num_computed(self) -> int:
        """Positions that are computed, or will be by a step that was sent."""
        return self.length - self.num_uncomputed

    @property
    def num_uncomputed(self) -> int:
        """Positions that no step that was sent computes."""
        return len(self.uncomputed)

    @property
    def length(self) -> int:
        """Tokens known or about to be."""
        return len(self.request.tokens) + self.pending

    @property
    def num_generated(self) -> int:
        return self.length - self.request.prompt_tokens

    @property
    def can_grow(self) -> bool:
        """Whether another token may be sampled after those on their way."""
        return len(self.request.tokens) + self.pending < self.max_length

    @property
    def is_decoding(self) -> bool:
        """Whether only its last position is to be computed."""
        return self.uncomputed.is_only(len(self.request.tokens) + self.pending - 1)

    @property
    def num_alike(self) -> int:
        """How many tokens may come, each followed by another one, that change nothing but how long it is."""
        request, placement = self.request, self.placement
        num_tokens = len(request.tokens)
        if (
            not self.is_uniform
            or num_tokens <= request.prompt_tokens
            or placement.unassigned_slots
            or (placement.debts and placement.has_outgoing)
        ):
            return 0
        left = self.max_length - num_tokens - self.pending - 1
        return left if left > 0 else 0

    def span_of(self, block: Block) -> tuple[int, int]:
        """Positions of a block, the last one clipped to the sequence."""
        start = block.number * self.placement.block_tokens
        return start, min(start + self.placement.block_tokens, self.length)

    # --- its state

    def enter(self, state: SeqState, retry_at: float = 0.0, retries: int = 0) -> None:
        """Change its state; nobody but `Sequences` does. Who runs has stopped trying and starving."""
        self.state = state
        if state is SeqState.WAITING:
            self.retry_at, self.retries = retry_at, retries
        elif state is SeqState.RUNNING:
            self.retries, self.starved_since = 0, None

    def hope(self) -> None:
        """What it tries to get may have come free: should it fail, it is as if it had tried once."""
        self.retries = 0

    @property
    def starves(self) -> bool:
        """Whether the live instances cannot hold it."""
        return self.starved_since is not None

    def starve(self, since: float | None) -> None:
        """The live instances cannot hold it, from `since` on if they could before; or (None) they can."""
        if since is None or self.starved_since is None:
            self.starved_since = since

    # --- how far it is computed

    def planned(self, start: int, end: int) -> None:
        """A step that computes [start, end) is sent; if it samples, the new position is to be computed next."""
        self.uncomputed.remove(start, end)
        length = self.length
        if end == length:
            self.pending += 1
            if length + 1 < self.max_length:
                self.uncomputed.add(length, length + 1)
                self.placement.cover(length + 1)

    def computed(self, start: int, end: int) -> int:
        """The KV of [start, end) is written; returns how many of these positions had been computed before."""
        again, before = 0, self.high_water
        if start < before:
            again = max(0, min(end, before) - start)
        if end > before:
            self.high_water = end
        block_tokens = self.placement.block_tokens
        if (first := start // block_tokens) < (after := end // block_tokens):
            self.placement.mark_full(self.placement.blocks[first:after])
        return again

    def not_computed(self, start: int, end: int) -> None:
        """A step that was to compute [start, end) did not: another one has to."""
        self.uncomputed.add(start, end)

    def append(self, token_id: int) -> None:
        """A sampled token is back."""
        self.request.tokens.append(token_id)
        self.pending -= 1

    def decoded(self, start: int, token_ids: Seq[int], slots: Seq[int]) -> int:
        """Steps computed as many positions from `start` on, whose sampled tokens these are, and as many more steps are
        sent, each of which decodes it; the rBlocks that they begin lie in these slots. Returns as `computed`."""
        placement, tokens, steps = self.placement, self.request.tokens, len(token_ids)
        first = len(tokens) + self.pending - 1
        self.uncomputed.advance(first, steps)
        tokens.extend(token_ids)
        placement.grow(first + 1 + steps, -(-first // placement.block_tokens), slots)
        return self.computed(start, start + steps)

    def void(self, ranges: Iterable[tuple[int, int]], ahead: int) -> None:
        """Nothing of the steps in flight counts: `ranges` are to be computed again, in a new attempt, and no token is
        sampled yet. ahead: how many may have been."""
        for start, end in ranges:
            self.uncomputed.add(start, end)
        self.pending = 0
        self.uncomputed.remove(self.length, self.length + ahead)
        self.attempt += 1
        self.placement.new_version()

    # --- memory, as far as it decides what is to be computed

    def taken(self, debt: Debt) -> tuple[list[int], dict[Debt, list[int]]]:
        """A creditor has what lay ready; returns the slots that it leaves, and the positions by debt."""
        moved, slots, left = self.placement.taken(debt)
        for block in moved:
            self.uncomputed.remove(*self.span_of(block))
        return slots, left

    def lose(self, debt: Debt) -> int:
        """A span is gone: what lay in it is to be computed again; returns how many blocks."""
        lost = self.placement.lose(debt)
        for block in lost:
            self.uncomputed.add(*self.span_of(block))
        return len(lost)

    def give_up(self, debt: Debt, blocks: Iterable[Block]) -> list[int]:
        """These blocks leave a span for nowhere: they are to be computed again; returns the positions they leave."""
        given_up = list(blocks)
        positions = self.placement.give_up(debt, given_up)
        for block in given_up:
            self.uncomputed.add(*self.span_of(block))
        return positions

    def vacate(self) -> list[int]:
        """Take the slots from blocks that must wait for blocks before them: those that hold nothing, and those not
        full yet that are to leave. Returns the slots. No step in flight may compute for this attempt."""
        if not self.uncomputed:
            return []
        vacated = []
        first = self.uncomputed.first[0] // self.placement.block_tokens + 1
        for block in self.placement.blocks[first:]:
            start, end = self.span_of(block)
            if block.slot is None or block.full or start >= end:
                continue
            if block.debt is not None or self.uncomputed.covers(start, end):
                self.uncomputed.add(start, end)
                vacated.append(block)
        return self.placement.vacate(vacated)

    def clear(self) -> Cleared:
        """Hold nothing; all of it is to be computed again."""
        self.uncomputed = Ranges([(0, self.length)])
        return self.placement.clear()

    def validate(self) -> None:
        """Its memory is in order; what waits without KV holds no memory; only known positions are to be computed."""
        self.placement.validate()
        if self.state is SeqState.WAITING and not self.placement.holds_kv:
            assert not self.placement.unassigned_slots, f"{self.request_id} waits and holds slots"
        for start, end in self.uncomputed:
            assert 0 <= start < end <= self.length, f"{start} to {end} of {self.length} positions are to be computed"
