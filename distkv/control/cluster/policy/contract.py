"""Borrowing on demand (000 §4.4): a debtor asks when it needs memory, up to three candidates, nothing is planned.

Creditors by locality, which is what a link to them costs, then by availability. What a debtor borrows is spread over
its creditors by their memory: each step waits for the slowest of them, and the loss of one is the smaller.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import islice

from distkv.control.cluster.policy.interface import Balance, Instances, InstanceView, Move, RecentMoves
from distkv.wire.messages.profile import LinkKind, Profile
from distkv.wire.messages.to_gmanager import BorrowQuery

MAX_CANDIDATES = 3
MAX_COMPARED = 12
"""Of those that are alike but for their memory, so many with most of it are compared."""
MAX_PASSED = 64
"""So many of one host are passed over at most to find some of others."""
ALIKE = 0.1
"""Links that differ by less than this share are equally cheap."""


class ContractPolicy:
    """`contract`."""

    plans = False
    shares_memory = True
    swaps = True

    def recommend(self, query: BorrowQuery, instances: Instances) -> Sequence[InstanceView]:
        """By locality, then availability; later those where requests of their own wait for memory, and last those that
        the debtor doubts."""
        return tuple(islice(_creditors(query, instances), MAX_CANDIDATES))

    def plan(self, balance: Balance, recent: RecentMoves) -> Sequence[Move]:
        """Nothing: debtors ask."""
        return ()


def _creditors(query: BorrowQuery, instances: Instances) -> Iterator[InstanceView]:
    debtor = instances.get(query.instance_id)
    excluded = {query.instance_id, *query.exclude}
    skip = excluded.union(query.suspects)
    for waiting in (False, True):
        for alike in _by_locality(debtor, instances, waiting, skip):
            yield from _spread(query, instances, islice(alike, MAX_COMPARED))
    found = (instances.get(name) for name in set(query.suspects) - excluded)
    doubted = [view for view in found if view is not None and view.state == "ready" and view.lendable_blocks > 0]
    host_key = "" if debtor is None else debtor.host_key
    yield from sorted(_spread(query, instances, doubted), key=lambda view: not host_key or view.host_key != host_key)


def _by_locality(
    debtor: InstanceView | None, instances: Instances, waiting: bool, skip: Collection[str]
) -> Iterator[Iterator[InstanceView]]:
    """Those that are equally near, nearest first; of each those with most to lend first."""
    everybody = instances.able_to_lend(None, waiting=waiting, skip=skip)
    if debtor is None or not debtor.host_key:
        yield everybody
        return
    host_key = debtor.host_key
    host_s, network_s = _link_s(debtor.profile, "host"), _link_s(debtor.profile, "network")
    if host_s is not None and network_s is not None and abs(host_s - network_s) < ALIKE * max(host_s, network_s):
        yield everybody
        return
    here = instances.able_to_lend(host_key, waiting=waiting, skip=skip)
    others = (view for view in islice(everybody, MAX_PASSED) if view.host_key != host_key)
    is_host_first = host_s is None or network_s is None or host_s < network_s
    yield from (here, others) if is_host_first else (others, here)


def _link_s(profile: Profile | None, kind: LinkKind) -> float | None:
    """Seconds for the queries of one row and its partials, in one layer; None if that was not measured."""
    link = None if profile is None else profile.links.get(kind)
    if profile is None or link is None:
        return None
    bytes_ = profile.query_bytes + profile.partial_bytes
    return max(link.round_trip_s, link.busy_round_trip_s) + bytes_ / link.bytes_per_s


def _spread(query: BorrowQuery, instances: Instances, views: Iterable[InstanceView]) -> list[InstanceView]:
    """First where the debtor would have the smallest share of what it can have there at all."""

    def share(view: InstanceView) -> tuple[float, int, str]:
        lent = instances.lent(view.instance_id, query.instance_id)
        wanted = lent + max(1, query.num_blocks)
        return wanted / (lent + max(1, view.lendable_blocks)), -view.lendable_blocks, view.instance_id

    return sorted(views, key=share)
