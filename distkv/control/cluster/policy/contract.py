"""Borrowing on demand (000 §4.4): a debtor asks when it needs memory, up to three candidates, nothing is planned."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice

from distkv.control.cluster.policy.interface import Instances, InstanceView, Move
from distkv.wire.messages.to_gmanager import BorrowQuery, Locate

MAX_CANDIDATES = 3


class ContractPolicy:
    """`contract`."""

    plans = False

    def dispatch(self, request: Locate, instances: Instances) -> InstanceView | None:
        """Best first: nobody waits there; it fits locally, then the fewest requests; else the most free memory."""
        skip = frozenset(request.exclude)
        for waiting in (False, True):
            chosen = instances.fitting(request.num_tokens, waiting=waiting, skip=skip)
            chosen = chosen or instances.roomiest(waiting=waiting, skip=skip)
            if chosen is not None:
                return chosen
        return None

    def recommend(self, query: BorrowQuery, instances: Instances) -> Sequence[InstanceView]:
        """By locality, then availability; those that the debtor doubts come last."""
        return tuple(islice(_creditors(query, instances), MAX_CANDIDATES))

    def plan(self, instances: Instances) -> Sequence[Move]:
        """Nothing: debtors ask."""
        return ()


def _creditors(query: BorrowQuery, instances: Instances) -> Iterator[InstanceView]:
    debtor = instances.get(query.instance_id)
    host = "" if debtor is None else debtor.host_key
    excluded = {query.instance_id, *query.exclude}
    skip = excluded.union(query.suspects)
    if host:
        yield from instances.lenders(host, skip=skip)
    for view in instances.lenders(None, skip=skip):
        if not host or view.host_key != host:
            yield view
    found = (instances.get(name) for name in set(query.suspects) - excluded)
    doubted = [view for view in found if view is not None and view.state == "ready" and view.lendable_blocks > 0]
    doubted.sort(key=lambda view: (not host or view.host_key != host, -view.lendable_blocks, view.instance_id))
    yield from doubted
