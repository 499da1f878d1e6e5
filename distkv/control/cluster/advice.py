"""What the gManager answers by its policy, and the account it keeps of that until the next heartbeats."""

from __future__ import annotations

from collections import Counter

import msgspec

from distkv import events
from distkv.control.cluster.dispatch.interface import Dispatcher, expected_tokens
from distkv.control.cluster.dispatch.log import DispatchLog
from distkv.control.cluster.dispatch.redispatch import redispatch, roomiest, spare_tokens
from distkv.control.cluster.ledger import Ledger
from distkv.control.cluster.planning.plans import Plans
from distkv.control.cluster.policy.interface import InstanceView, Policy
from distkv.control.commands import Answer, GManagerCommand, Publish
from distkv.wire.messages.to_client import Dispatched, Located
from distkv.wire.messages.to_gmanager import BorrowQuery, ExplainQuery, Locate, RedispatchQuery, WaitingRequest
from distkv.wire.messages.to_rmanager import Candidate, Creditors, MoveKvcache, Redispatch, Redispatched

NAMED_IN_A_REASON = 8


class Advice:
    """Where a request should go, who may lend, what should move."""

    def __init__(self, ledger: Ledger, policy: Policy, dispatcher: Dispatcher, incarnation: int) -> None:
        """incarnation: of the gManager."""
        self._ledger = ledger
        self._policy = policy
        self._dispatcher = dispatcher
        self._plans = Plans(incarnation, ledger)
        self._dispatches = DispatchLog()

    def dispatch(self, locate: Locate, num_ready: int, now: float) -> Located:
        """The instance, of so many, that should serve a request, to which it is promised; or why there is none."""
        chosen = self._dispatcher.choose(locate, self._ledger.available)
        if chosen is None:
            return Located(request_id=locate.request_id, reason=f"no instance is ready ({self._states()})")
        self._dispatches.note(locate, chosen, num_ready, now)
        num_blocks = chosen.blocks_for(expected_tokens(locate, chosen))
        prompt_tokens = locate.prompt_tokens or locate.num_tokens
        self._ledger.promise(chosen.instance_id, locate.request_id, num_blocks, prompt_tokens)
        address = self._ledger.entries[chosen.instance_id].member.address
        return Located(request_id=locate.request_id, instance_id=chosen.instance_id, address=address)

    def dispatched(self, query: ExplainQuery, now: float) -> Dispatched:
        """Where a request was sent, and who serves it now: that looks at all instances, for one number of each."""
        found = self._dispatches.find(query.request_id, now)
        placed = found.request_id or query.request_id, True
        serving = (name for name, entry in self._ledger.entries.items() if placed in entry.placement)
        return msgspec.structs.replace(found, serving_id=next(serving, ""))

    def recommend(self, query: BorrowQuery, *, is_own: bool) -> Creditors:
        """Whom a debtor should ask. is_own: it is the debtor itself that asks: what it will borrow is held back there,
        as far as the candidates before leave it wanting."""
        if is_own and query.movable_tokens:
            request = WaitingRequest(query.request_id, query.movable_tokens, query.prompt_tokens)
            if (chosen := self._redispatch(request, query.instance_id)) is not None:
                return Creditors(borrow_id=query.borrow_id, go_to=chosen.instance_id)
        creditors = self._policy.recommend(query, self._ledger.available)
        lendable = {view.instance_id: self._ledger.entries[view.instance_id].lendable for view in creditors}
        missing = query.num_blocks
        for instance_id in lendable if is_own else ():
            missing -= self._ledger.hold(instance_id, missing, query.instance_id)
        candidates = tuple(Candidate(instance_id, blocks) for instance_id, blocks in lendable.items())
        return Creditors(borrow_id=query.borrow_id, candidates=candidates)

    def room_tokens(self, instance_id: str) -> int:
        """Tokens that requests waiting at an instance could have memory for elsewhere; 0 if none is to be had."""
        if not self._policy.shares_memory:
            return 0
        found = roomiest(instance_id, self._ledger.available)
        return 0 if found is None else spare_tokens(found)

    def redispatch(self, query: RedispatchQuery) -> Redispatch:
        """Which of the requests should go where; each is promised to its instance before the next is looked at."""
        chosen = ((request.req_id, self._redispatch(request, query.instance_id)) for request in query.requests)
        return Redispatch(requests=tuple(Redispatched(name, view.instance_id) for name, view in chosen if view))

    def _redispatch(self, request: WaitingRequest, instance_id: str) -> InstanceView | None:
        chosen = None
        if self._policy.shares_memory:
            chosen = redispatch(request, instance_id, self._ledger.available)
        if chosen is not None:
            num_blocks = chosen.blocks_for(request.num_tokens)
            self._ledger.send(chosen.instance_id, request, num_blocks, instance_id)
        return chosen

    def planned(self, now: float) -> list[GManagerCommand]:
        """What the policy has moved: to whom to tell it, and what was planned and came of it."""
        commands: list[GManagerCommand] = [Publish(told) for told in self._plans.begin(now)]
        for move in self._policy.plan(self._ledger.balance, self._plans):
            entry = self._ledger.entries[move.debtor_id]
            if entry.heartbeat is not None:
                epoch = self._plans.put(move)
                planned = events.MovePlanned(
                    request_id=move.request_id,
                    debtor=move.debtor_id,
                    destination=move.creditor_id,
                    blocks=move.num_blocks,
                    gain_tokens_per_s=move.gain_tokens_per_s,
                )
                message = MoveKvcache(
                    request_id=move.request_id,
                    num_blocks=move.num_blocks,
                    destination=move.creditor_id,
                    epoch=epoch,
                    debtor_incarnation=entry.member.incarnation,
                    seq=entry.heartbeat.seq,
                    gain_tokens_per_s=move.gain_tokens_per_s,
                )
                commands += [Publish(planned), Answer(entry.route, message)]
                if not move.is_homeward:
                    self._ledger.hold(move.creditor_id, move.num_blocks, move.debtor_id)
        return commands

    def _states(self) -> str:
        """Each instance by name while they are few, else how many are in each state."""
        entries = self._ledger.entries
        if len(entries) <= NAMED_IN_A_REASON:
            return ", ".join(f"{name} {entries[name].state}" for name in sorted(entries)) or "none has joined"
        counts = Counter(entry.state for entry in entries.values())
        return ", ".join(f"{count} {state}" for state, count in sorted(counts.items()))
