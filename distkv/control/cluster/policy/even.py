"""Evening out the use of memory: borrowing on demand as by `contract`, and a plan besides.

Where the fullest instance of a host is ahead of the mean there by more than `even_ahead` of its pool, full rBlocks of
the request of which most could leave go to the least full instance that may have them, as many as bring it just below
that, and no more than bring the other one up to the mean: the maximum never grows, and what was moved is no reason to
move anything again. One creditor at a time, so that the others compute prompts undisturbed. Nothing moves where the
performance model says that both would generate less for it, and where requests wait: what they may borrow is decided by
`contract`, and what left for another reason would be filled.

What has left stays until its request ends, or its creditor wants its memory (`loan/debtor/homecoming.py`): at home it
would have to leave again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice

from distkv.config import AdviceSettings
from distkv.control.cluster.policy.contract import ContractPolicy
from distkv.control.cluster.policy.interface import Balance, Instances, InstanceView, Move, RecentMoves
from distkv.control.cluster.policy.pairing import Creditor, Debtor, Part, pair_tokens_per_s, part_at
from distkv.wire.messages.to_gmanager import BorrowQuery

MOST_HOSTS = 16
"""That one plan looks at; the next one goes on behind them."""
MOST_CREDITORS, MOST_READ = 4, 64
"""Of the least full instances of a host, for its fullest: those that are predicted for, and those among which they are
looked for."""
BELOW = 0.95
"""Of `even_ahead`: so far ahead may be who has let blocks leave, so that what it generates next moves nothing."""
MOST_LOSS = 0.02
"""Of what both generate, by the performance model."""


class EvenPolicy:
    """`even`. Needs profiles: what nobody has measured is not planned with."""

    plans = True
    swaps = True
    shares_memory = True

    def __init__(self, settings: AdviceSettings | None = None) -> None:
        self._ahead = (settings or AdviceSettings()).even_ahead
        self._on_demand = ContractPolicy()

    def recommend(self, query: BorrowQuery, instances: Instances) -> Sequence[InstanceView]:
        """As by contract."""
        return self._on_demand.recommend(query, instances)

    def plan(self, balance: Balance, recent: RecentMoves) -> Sequence[Move]:
        """One move for each host that needs it and can have it, the most uneven first."""
        moves: list[Move] = []
        for count, uneven in enumerate(balance.fullness.uneven(recent.evened)):
            if -uneven.minus_ahead <= self._ahead:
                break
            if count == MOST_HOSTS:
                return moves
            recent.evened = uneven
            moves += self._evened(uneven.host_key, balance, recent)
        recent.evened = None
        return moves

    def _evened(self, host_key: str, balance: Balance, recent: RecentMoves) -> Iterator[Move]:
        fullness = balance.fullness
        debtor = balance.get(fullness.fullest(host_key))
        if debtor is None or debtor.waiting or not recent.may_plan_for(debtor.instance_id):
            return
        longest = next((one for one in debtor.longest if recent.may_leave(one.request_id)), None)
        if longest is None:
            return
        mean = fullness.mean(host_key)
        excess = int((_used(debtor) - mean - BELOW * self._ahead) * debtor.total_blocks)
        most = min(longest.movable_blocks, excess)
        views = (balance.get(name) for name in islice(fullness.emptiest(host_key), MOST_READ))
        rooms = ((view, _room(view, debtor, mean)) for view in views if view is not None)
        for creditor, room in islice((one for one in rooms if one[1] > 0), MOST_CREDITORS):
            num_blocks = min(most, room)
            gain = _gain(debtor, creditor, num_blocks, balance) if num_blocks > 0 else None
            if gain is not None:
                yield Move(
                    request_id=longest.request_id,
                    debtor_id=debtor.instance_id,
                    creditor_id=creditor.instance_id,
                    num_blocks=num_blocks,
                    gain_tokens_per_s=max(0.0, gain),
                )
                return


def _used(view: InstanceView) -> float:
    return (view.total_blocks - view.free_blocks) / view.total_blocks


def _room(creditor: InstanceView, debtor: InstanceView, mean: float) -> int:
    """rBlocks that it could lend to this debtor without being fuller than the mean, or wanting them back."""
    is_able = creditor.block_tokens == debtor.block_tokens and creditor.model is not None
    if not is_able or creditor.waiting or creditor.wanted_back or creditor.instance_id == debtor.instance_id:
        return 0
    return min(creditor.lendable_blocks, int((mean - _used(creditor)) * creditor.total_blocks))


def _gain(debtor: InstanceView, creditor: InstanceView, num_blocks: int, balance: Balance) -> float | None:
    """What both are predicted to generate more with so many blocks more there; None if that is MOST_LOSS less, or the
    creditor would take longer than all that the debtor computes itself meanwhile."""
    if debtor.model is None or creditor.model is None:
        return None
    parts: dict[str, Part] = {}
    for name, num_owed in balance.creditors_of(debtor.instance_id).items():
        if (view := balance.get(name)) is not None:
            parts[name] = part_at(debtor, view, num_owed * debtor.block_tokens)
    owing, lending = Debtor(debtor, debtor.model, parts), Creditor(creditor, creditor.model)
    now = pair_tokens_per_s(owing, lending, 0) or 0.0
    then = pair_tokens_per_s(owing, lending, num_blocks)
    return None if then is None or then < (1 - MOST_LOSS) * now else then - now
