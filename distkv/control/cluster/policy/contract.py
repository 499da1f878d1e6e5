"""Borrowing on demand (000 §4.4): a debtor asks when it needs memory, up to three candidates, nothing is planned."""

from __future__ import annotations

from collections.abc import Sequence

from distkv.control.cluster.policy.interface import InstanceView, Move
from distkv.wire.messages.to_gmanager import BorrowQuery, Locate

MAX_CANDIDATES = 3


class ContractPolicy:
    """`contract`."""

    def dispatch(self, request: Locate, instances: Sequence[InstanceView]) -> InstanceView | None:
        """Best first: nobody waits there; it fits locally, then the fewest requests; else the most free memory."""
        able = [view for view in instances if view.state == "ready" and view.instance_id not in request.exclude]
        return min(able, key=lambda view: _unfitness(view, view.blocks_for(request.num_tokens)), default=None)

    def recommend(self, query: BorrowQuery, instances: Sequence[InstanceView]) -> Sequence[InstanceView]:
        """By locality, then availability; those that the debtor doubts come last."""
        host = next((view.host_key for view in instances if view.instance_id == query.instance_id), "")
        skip = {query.instance_id, *query.exclude}
        able = [
            view
            for view in instances
            if view.state == "ready" and view.lendable_blocks > 0 and view.instance_id not in skip
        ]
        doubted = frozenset(query.suspects)
        able.sort(
            key=lambda view: (
                view.instance_id in doubted,
                not host or view.host_key != host,
                -view.lendable_blocks,
                view.instance_id,
            )
        )
        return able[:MAX_CANDIDATES]

    def plan(self, instances: Sequence[InstanceView]) -> Sequence[Move]:
        """Nothing: debtors ask."""
        return ()


def _unfitness(view: InstanceView, needed: int) -> tuple[bool, bool, int, int, str]:
    """Sorts instances, the best first; equal ones by name."""
    fits = view.free_blocks >= needed
    return view.waiting > 0, not fits, view.load if fits else 0, -view.free_blocks, view.instance_id
