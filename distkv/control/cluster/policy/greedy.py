"""Balancing by a greedy plan (001 §5.3, Algorithm 1): debtors with a small batch and requests that wait, or that their
pool will not hold soon, move rBlocks of their longest request to the creditors that are least used, as many as make
both generate most, until nothing is gained. Waiting requests that fit elsewhere alone go there whole, and count for
nothing here.

No instance is debtor and creditor at once: a creditor that is short reclaims, a debtor that has room recalls. A plan
costs the same however many instances there are: it looks at so many of them, and predicts so often, at most; where the
round before ended the next one goes on.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice

import msgspec

from distkv.config import AdviceSettings
from distkv.control.cluster.policy.contract import ContractPolicy
from distkv.control.cluster.policy.elsewhere import Elsewhere
from distkv.control.cluster.policy.interface import Balance, Instances, InstanceView, Move, RecentMoves
from distkv.control.cluster.policy.pairing import (
    Creditor,
    Debtor,
    Part,
    pair_tokens_per_s,
    part_at,
    saturating_batch,
    without_least,
)
from distkv.control.performance.model import PerformanceModel
from distkv.wire.messages.to_gmanager import BorrowQuery, LongRequest

MOST_LOOKS = {True: 48, False: 16}
"""Debtors that one plan looks at: those that need memory, and others. As many as of the others could recall."""
MOST_CREDITORS, MOST_READ = 8, 64
"""Of those that are least used, for all debtors of a plan, and those among which they are looked for."""
MOST_PREDICTIONS = 96
"""How often one plan predicts what two instances generate: about two milliseconds."""
KEPT_PREDICTIONS = {True: 48, False: 24}
"""Of these, what debtors that need memory, and others, leave for what a plan looks at after them; the last one may need
about twenty."""
ENOUGH = 0.99
"""Of moves that gain so much of the most, that of the fewest rBlocks is planned."""


class GreedyPolicy:
    """`greedy`. Needs profiles: what nobody has measured is not planned with."""

    plans = True
    swaps = False
    shares_memory = True

    def __init__(self, settings: AdviceSettings | None = None) -> None:
        self._settings = settings or AdviceSettings()
        self._on_demand = ContractPolicy()

    def recommend(self, query: BorrowQuery, instances: Instances) -> Sequence[InstanceView]:
        """As by contract: what was not foreseen is borrowed on demand, of instances that owe nothing."""
        return self._on_demand.recommend(query, instances)

    def plan(self, balance: Balance, recent: RecentMoves) -> Sequence[Move]:
        """Moves to creditors, then moves home."""
        plan = _Plan(self._settings, balance, recent)
        plan.outward()
        plan.homeward()
        return plan.moves


class _Plan:
    """One plan under way. Who gets blocks in it sends none, and the other way round."""

    def __init__(self, settings: AdviceSettings, balance: Balance, recent: RecentMoves) -> None:
        self._settings = settings
        self._balance = balance
        self._recent = recent
        self._left = MOST_PREDICTIONS
        views = list(islice(balance.least_used(), MOST_READ))
        self._elsewhere = Elsewhere(views[:MOST_CREDITORS])
        able = (Creditor(view, view.model) for view in views if view.model is not None)
        self._creditors = list(islice(able, MOST_CREDITORS))
        self.moves: list[Move] = []

    # --- outward

    def outward(self) -> None:
        """Debtors by ascending batch, those that need memory before those that could only be faster."""
        for needs in (True, False):
            keep = KEPT_PREDICTIONS[needs]
            for count, view in enumerate(self._balance.debtors(self._recent.went_to[needs], needs=needs)):
                if count == MOST_LOOKS[needs] or self._left <= keep:
                    break
                self._recent.went_to[needs] = view.running, view.instance_id
                self._relieve(view, keep)
            else:
                self._recent.went_to[needs] = None

    def _relieve(self, view: InstanceView, keep: int) -> None:
        """Have blocks of its longest request leave, creditor by creditor, until one on the same host gains nothing, or
        `keep` predictions are left; behind one over a network that does not, only those on the same host are looked
        at."""
        view = self._staying(view)
        model = view.model
        longest = next((one for one in view.longest if self._recent.may_leave(one.request_id)), None)
        if model is None or longest is None or not self._recent.may_plan_for(view.instance_id):
            return
        debtor = Debtor(view, model, self._parts(view))
        if debtor.batch > self._most_batch(model):
            return
        if view.instance_id in {move.creditor_id for move in self.moves}:
            return
        left, is_near_only = longest.movable_blocks, False
        for creditor in self._by_use(view):
            is_near = part_at(view, creditor.view, 0).link == "host"
            if is_near_only and not is_near:
                continue
            most = min(left, creditor.room(self._settings.greedy_creditor_utilization))
            num_blocks, gain = self._best(debtor, creditor, most)
            if num_blocks:
                debtor.took(num_blocks, creditor)
                self._elsewhere.lends(creditor.view.instance_id, num_blocks)
                left -= num_blocks
                self._move(longest, view, creditor.view.instance_id, num_blocks, gain)
            elif is_near:
                return
            else:
                is_near_only = True
            if not left or self._left <= keep:
                return

    def _staying(self, view: InstanceView) -> InstanceView:
        """A debtor without the waiting requests that are sent on: what has to leave for them is nothing, and what they
        take elsewhere is not lent."""
        view, taken = self._elsewhere.staying(view)
        for creditor in self._creditors if taken else ():
            creditor.taken_blocks += taken[creditor.view.instance_id]
        return view

    def _best(self, debtor: Debtor, creditor: Creditor, most: int) -> tuple[int, float]:
        """How many blocks, up to `most`, make both generate most, and how much more; (0, 0) if that is not worth it."""
        now = pair_tokens_per_s(debtor, creditor, 0) or 0.0
        self._left -= 1
        found: list[tuple[int, float]] = []
        for num_blocks in debtor.amounts(most):
            self._left -= 1
            rate = pair_tokens_per_s(debtor, creditor, num_blocks)
            if rate is not None:
                found.append((num_blocks, rate - now))
        most_gain = max((gain for _, gain in found), default=0.0)
        if most_gain <= 0 or most_gain < self._settings.greedy_min_gain * now:
            return 0, 0.0
        return next((num_blocks, gain) for num_blocks, gain in found if gain >= ENOUGH * most_gain)

    def _by_use(self, debtor: InstanceView) -> Iterator[Creditor]:
        """Creditors with anything to lend to this debtor, the least used first, and again after each that was given."""
        named = {move.debtor_id for move in self.moves} | {debtor.instance_id}
        able = [one for one in self._creditors if one.view.instance_id not in named]
        able = [one for one in able if one.view.block_tokens == debtor.block_tokens and not one.view.borrowed_blocks]
        while able:
            able.sort(key=lambda one: (one.utilization, one.view.instance_id))
            creditor = able.pop(0)
            if not creditor.room(self._settings.greedy_creditor_utilization):
                continue
            yield creditor

    def _parts(self, view: InstanceView) -> dict[str, Part]:
        """What lies at each of its creditors."""
        parts: dict[str, Part] = {}
        for name, num_blocks in self._balance.creditors_of(view.instance_id).items():
            creditor = self._balance.get(name)
            if creditor is not None:
                parts[name] = part_at(view, creditor, num_blocks * view.block_tokens)
        return parts

    def _most_batch(self, model: PerformanceModel) -> int:
        given = self._settings.greedy_debtor_batch
        return saturating_batch(model.profile) if given is None else given

    # --- homeward

    def homeward(self) -> None:
        """Who has room brings home blocks of the request that has most elsewhere, if it generates more then."""
        named = {name for move in self.moves for name in (move.debtor_id, move.creditor_id)}
        for count, view in enumerate(self._balance.owing(self._recent.came_from)):
            if count == MOST_LOOKS[False] or self._left <= 0:
                return
            self._recent.came_from = view.instance_id
            if view.model is None or view.instance_id in named:
                continue
            able = [one for one in view.longest if one.remote_blocks and self._recent.may_come_home(one.request_id)]
            request = max(able, key=lambda one: one.remote_blocks, default=None)
            if request is not None:
                self._recall(view, request, view.model)
        self._recent.came_from = ""

    def _recall(self, view: InstanceView, request: LongRequest, model: PerformanceModel) -> None:
        """As many as leave room to grow; nothing that would be planned to leave again, or to make others leave."""
        reserve = view.total_blocks - int(self._settings.greedy_creditor_utilization * view.total_blocks)
        keep = view.growing_blocks + reserve
        num_blocks = min(request.remote_blocks, view.free_blocks - keep)
        if num_blocks <= 0:
            return
        parts = self._parts(view)
        kept = without_least(parts, num_blocks * view.block_tokens)
        at_home = Debtor(msgspec.structs.replace(view, free_blocks=view.free_blocks - num_blocks), model, kept)
        now, then = (one.batch * one.per_s for one in (Debtor(view, model, parts).step(), at_home.step()))
        self._left -= 1
        if then <= now or then - now < self._settings.greedy_min_gain * now:
            return
        creditor = next(self._by_use(view), None)
        if creditor is None or not self._best(at_home, creditor, num_blocks)[0]:
            self._move(request, view, view.instance_id, num_blocks, then - now)

    def _move(self, request: LongRequest, debtor: InstanceView, to: str, num_blocks: int, gain: float) -> None:
        move = Move(
            request_id=request.request_id,
            debtor_id=debtor.instance_id,
            creditor_id=to,
            num_blocks=num_blocks,
            gain_tokens_per_s=gain,
        )
        self.moves.append(move)
