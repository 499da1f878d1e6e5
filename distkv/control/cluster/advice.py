"""What the gManager answers by its policy, and the account it keeps of that until the next heartbeats."""

from __future__ import annotations

from collections import Counter

from distkv import events
from distkv.control.cluster.ledger import Ledger
from distkv.control.cluster.policy.interface import Policy
from distkv.wire.messages.to_client import Located
from distkv.wire.messages.to_gmanager import BorrowQuery, Locate
from distkv.wire.messages.to_rmanager import Candidate, Creditors

NAMED_IN_A_REASON = 8


class Advice:
    """Where a request should go, who may lend, what should move."""

    def __init__(self, ledger: Ledger, policy: Policy) -> None:
        self._ledger = ledger
        self._policy = policy

    def dispatch(self, locate: Locate) -> Located:
        """The instance that should serve a request, to which it is promised; or why there is none."""
        chosen = self._policy.dispatch(locate, self._ledger.available)
        if chosen is None:
            return Located(request_id=locate.request_id, reason=f"no instance is ready ({self._states()})")
        self._ledger.promise(chosen.instance_id, chosen.blocks_for(locate.num_tokens))
        address = self._ledger.entries[chosen.instance_id].member.address
        return Located(request_id=locate.request_id, instance_id=chosen.instance_id, address=address)

    def recommend(self, query: BorrowQuery, *, is_own: bool) -> Creditors:
        """Whom a debtor should ask. is_own: it is the debtor itself that asks: what it will borrow is held back there,
        as far as the candidates before leave it wanting."""
        creditors = self._policy.recommend(query, self._ledger.available)
        lendable = {view.instance_id: self._ledger.entries[view.instance_id].lendable for view in creditors}
        missing = query.num_blocks
        for instance_id in lendable if is_own else ():
            missing -= self._ledger.hold(instance_id, missing)
        candidates = tuple(Candidate(instance_id, blocks) for instance_id, blocks in lendable.items())
        return Creditors(borrow_id=query.borrow_id, candidates=candidates)

    def planned(self) -> list[events.MovePlanned]:
        """What the policy would have moved."""
        return [
            events.MovePlanned(
                request_id=move.request_id,
                debtor=move.debtor_id,
                creditor=move.creditor_id,
                blocks=move.num_blocks,
            )
            for move in self._policy.plan(self._ledger.available)
        ]

    def _states(self) -> str:
        """Each instance by name while they are few, else how many are in each state."""
        entries = self._ledger.entries
        if len(entries) <= NAMED_IN_A_REASON:
            return ", ".join(f"{name} {entries[name].state}" for name in sorted(entries)) or "none has joined"
        counts = Counter(entry.state for entry in entries.values())
        return ", ".join(f"{count} {state}" for state, count in sorted(counts.items()))
