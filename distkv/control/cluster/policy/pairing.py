"""What two instances generate if rBlocks of a request go from one to the other, by the performance model (001 §5.3).

A debtor gains the requests that the freed rBlocks admit (β → β′), and those that would have to give way soon because
the pool does not hold what they are expected to grow by. It pays with a step that sends queries and waits for partials
as far as these are not covered; the creditor pays with the attention that it computes for the debtor.
"""

from __future__ import annotations

from itertools import accumulate
from operator import itemgetter
from typing import NamedTuple

from distkv.control.cluster.policy.interface import InstanceView
from distkv.control.performance.model import PerformanceModel
from distkv.wire.messages.profile import LinkKind, Profile

FORESEEN_S = 10.0
"""So far ahead the growth of running requests counts: blocks leave before the wall is hit, but not long before."""
MOST_AMOUNTS = 16
"""Numbers of blocks that are looked at one by one; of more, as many or a few more are."""
SATURATED = 0.9
"""Of the most sequences that a step computes each second."""


def saturating_batch(profile: Profile) -> int:
    """The smallest measured batch whose steps, but for attention, compute SATURATED of the most sequences each second:
    from there on a larger batch gains little (β_thres of 001 §5.3)."""
    rates = {point.size: point.size / point.seconds for point in profile.step if point.seconds}
    most = max(rates.values(), default=0.0)
    return next((size for size, rate in rates.items() if rate >= SATURATED * most), 0)


class Creditor:
    """An instance that may lend, with what was planned for it in this round."""

    def __init__(self, view: InstanceView, model: PerformanceModel) -> None:
        self.view = view
        self.model = model
        self.taken_blocks = 0

    @property
    def utilization(self) -> float:
        """Share of its pool that is in use, what was planned included."""
        used = self.view.total_blocks - self.view.free_blocks + self.taken_blocks
        return used / max(1, self.view.total_blocks)

    def room(self, most_utilization: float) -> int:
        """rBlocks that it could lend without being fuller than that."""
        below = int(most_utilization * self.view.total_blocks) - (self.view.total_blocks - self.view.free_blocks)
        return max(0, min(self.view.lendable_blocks, below) - self.taken_blocks)

    def tokens_per_s(self, debtor_tokens: int, other_tokens: int, debtor_steps_per_s: float) -> float:
        """What it generates itself while it serves so many tokens of one debtor, which makes so many steps, and so many
        of others. Others are taken to step as often as it does."""
        if not self.view.running:
            return 0.0
        context = self.view.context_tokens
        alone = self.view.running / self.model.step_s(self.view.running, context, served_tokens=other_tokens)
        return alone * self.model.kept_share(debtor_tokens, debtor_steps_per_s)


class Part(NamedTuple):
    """Tokens of a debtor at one creditor, and what it takes to attend to them. model: the creditor's, None without a
    profile. busy: it computes steps of its own."""

    tokens: int
    model: PerformanceModel | None
    link: LinkKind
    busy: bool


class StepTimes(NamedTuple):
    """A debtor's step: of how many sequences, its seconds, those that it computes itself, and those that the slowest
    creditor takes from queries to partials."""

    batch: int
    seconds: float
    local_s: float
    remote_s: float

    @property
    def per_s(self) -> float:
        """How many such steps it makes each second."""
        return 1.0 / self.seconds if self.batch else 0.0


class Debtor:
    """An instance whose batch could be larger, or will not fit soon, with what was planned for it in this round.

    freed_blocks: planned to leave. parts: what lies at each creditor, what was planned included.
    """

    def __init__(self, view: InstanceView, model: PerformanceModel, parts: dict[str, Part]) -> None:
        self.view = view
        self.model = model
        self.freed_blocks = 0
        self.parts = parts
        self.remote_rows = sum(one.remote_blocks > 0 for one in view.longest)
        self.deficit = self._deficit()

    @property
    def batch(self) -> int:
        """Its running requests that its pool will hold."""
        return max(0, self.view.running - self._lost(0))

    def admits(self, num_blocks: int) -> tuple[int, int]:
        """How many requests begin or go on, and their rBlocks, once so many blocks more have left: those that run, less
        who must give way, and of those that wait the oldest that fit."""
        view = self.view
        lost = self._lost(num_blocks)
        batch, blocks = max(0, view.running - lost), 0
        room = view.free_blocks - view.growing_blocks + self.freed_blocks + num_blocks
        most = (view.max_num_seqs or len(view.waiting_sizes) + batch) - batch
        for size in view.waiting_sizes:
            if most <= 0 or room <= 0:
                break
            if size <= room:
                room, blocks, batch, most = room - size, blocks + size, batch + 1, most - 1
        return batch, blocks

    def amounts(self, most: int) -> list[int]:
        """Numbers of blocks to look at, of 1 to `most`: each, or, of many, where another request fits, where one less
        must give way, and some between."""
        if most <= MOST_AMOUNTS:
            return list(range(1, most + 1))
        spare = self.view.free_blocks - self.view.growing_blocks + self.freed_blocks
        sizes = self.view.waiting_sizes[: MOST_AMOUNTS // 4]
        wanted = {most * part // (MOST_AMOUNTS // 2) for part in range(1, MOST_AMOUNTS // 2 + 1)}
        wanted.update(total - spare for total in accumulate(sizes))
        wanted.update(size - spare for size in sizes)
        held, missing = self._held, self.deficit - self.freed_blocks
        wanted.update(missing - held * number for number in range(MOST_AMOUNTS // 4))
        return sorted(num for num in wanted if 1 <= num <= most)

    def step(self, num_blocks: int = 0, creditor: Creditor | None = None) -> StepTimes:
        """Its step with so many blocks more at this creditor."""
        view, model = self.view, self.model
        batch, admitted = self.admits(num_blocks)
        if not batch:
            return StepTimes(0, 0.0, 0.0, 0.0)
        parts = self.parts
        if creditor is not None and num_blocks:
            parts = parts | {creditor.view.instance_id: self._part(num_blocks, creditor)}
        kept = min(1.0, batch / view.running) if view.running else 1.0
        here = max(0, view.context_tokens - sum(part.tokens for part in parts.values()))
        local = int(kept * here) + admitted * view.block_tokens
        local_s = model.step_s(batch, local)
        rows = max(1, min(batch, self.remote_rows))
        remote_s, slowest = max(
            (
                (model.remote_s(one.tokens, rows, link=one.link, busy=one.busy, creditor=one.model), one)
                for one in parts.values()
            ),
            default=(0.0, None),
            key=itemgetter(0),
        )
        if slowest is None:
            return StepTimes(batch, local_s, local_s, 0.0)
        seconds = model.step_s(
            batch,
            local + slowest.tokens,
            remote_tokens=slowest.tokens,
            remote_rows=rows,
            link=slowest.link,
            busy=slowest.busy,
            creditor=slowest.model,
        )
        return StepTimes(batch, seconds, local_s, remote_s)

    def took(self, num_blocks: int, creditor: Creditor) -> None:
        """So many blocks are planned to go there."""
        self.parts[creditor.view.instance_id] = self._part(num_blocks, creditor)
        self.freed_blocks += num_blocks
        self.remote_rows = max(1, self.remote_rows)
        creditor.taken_blocks += num_blocks

    def tokens_at(self, creditor: Creditor) -> int:
        """Those that lie there."""
        part = self.parts.get(creditor.view.instance_id)
        return 0 if part is None else part.tokens

    def _part(self, num_blocks: int, creditor: Creditor) -> Part:
        tokens = self.tokens_at(creditor) + num_blocks * self.view.block_tokens
        return part_at(self.view, creditor.view, tokens)

    def _deficit(self) -> int:
        """rBlocks that its running requests are expected to grow by soon, beyond the free ones."""
        view = self.view
        if not view.running or not view.step_s:
            return 0
        soon = view.running * FORESEEN_S / (view.step_s * max(1, view.block_tokens))
        return max(0, int(min(view.growing_blocks, max(soon, view.running))) - view.free_blocks)

    def _lost(self, num_blocks: int) -> int:
        """How many running requests must give way soon, if so many blocks more leave."""
        missing = self.deficit - self.freed_blocks - num_blocks
        if missing <= 0:
            return 0
        return -(-missing // self._held)

    @property
    def _held(self) -> int:
        """rBlocks that a running request holds here, on average."""
        return max(1, (self.view.total_blocks - self.view.free_blocks) // max(1, self.view.running))


def part_at(debtor: InstanceView, creditor: InstanceView, tokens: int) -> Part:
    """So many tokens of a debtor at this creditor."""
    is_near = bool(debtor.host_key) and debtor.host_key == creditor.host_key
    return Part(tokens, creditor.model, "host" if is_near else "network", creditor.running > 0)


def pair_tokens_per_s(debtor: Debtor, creditor: Creditor, num_blocks: int) -> float | None:
    """What both generate with so many blocks more at the creditor; None if any creditor would take longer for its part
    than all that the debtor computes itself meanwhile (001 §5.2.1)."""
    step = debtor.step(num_blocks, creditor)
    if num_blocks and step.remote_s > step.local_s:
        return None
    before = debtor.tokens_at(creditor)
    here = before + num_blocks * debtor.view.block_tokens
    lent = (creditor.view.lent_blocks + creditor.taken_blocks) * creditor.view.block_tokens
    return step.batch * step.per_s + creditor.tokens_per_s(here, max(0, lent - before), step.per_s)


def without_least(parts: dict[str, Part], tokens: int) -> dict[str, Part]:
    """What is left at each creditor when so many tokens come home, as a debtor brings them: from the one with fewest
    first."""
    kept = {}
    for name, part in sorted(parts.items(), key=lambda item: item[1].tokens):
        gone = min(part.tokens, tokens)
        tokens -= gone
        if part.tokens > gone:
            kept[name] = part._replace(tokens=part.tokens - gone)
    return kept
