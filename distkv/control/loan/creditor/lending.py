"""The creditor's book: which slots are lent to whom, under which lease, and what is being pulled into them.

A creditor alone decides about its memory. Granting reserves before any byte moves, first come first served, up to the
lending cap (000 §4.4, 001 §6.2). A slot is reusable only when the worker says that nobody reads or fills its span.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from distkv.control.blocks import BlockPool, SlotState
from distkv.control.timers import Timers
from distkv.wire.messages.common import Epoch, SpanRef
from distkv.wire.messages.to_gmanager import Debtor
from distkv.wire.messages.to_rmanager import MAX_GRANTED_BLOCKS, BlocksReady, Complete, Granted, Refused, TryMoveKvcache

LAST_CALL_S = 1.0
"""A debtor is told when its time to give back is over, twice in this time: it gives up what is still there."""


@dataclass(frozen=True, slots=True)
class Demand:
    """The debtor is to keep `keep` rBlocks of a span at most, from `until` on; if that is not so LAST_CALL_S later, it
    cannot renew."""

    keep: int
    until: float


@dataclass(slots=True, eq=False)
class Loan:
    """One lent span. [0, filled) of its slots are LENT, the others RESERVED, each until `Revoked`.

    route: by which it was requested; nobody else may use, renew or release it. closing: positions on their way back;
    returned: those whose slots were freed. demand: what is reclaimed of it. debtor_room: rBlocks that its debtor said
    it has free to bring it home. is_avoidable: as in `TryMoveKvcache`.
    """

    span: SpanRef
    request_id: str
    debtor_id: str
    debtor_incarnation: int
    route: bytes
    slots: tuple[int, ...]
    expires_at: float
    granted_at: float
    filled: int = 0
    pulling: int = 0
    blocks_ready: BlocksReady | None = None
    revoking: bool = False
    tell_debtor: bool = False
    closing: set[int] = field(default_factory=set)
    returned: set[int] = field(default_factory=set)
    demand: Demand | None = None
    debtor_room: int = 0
    is_avoidable: bool = False

    @property
    def num_demanded(self) -> int:
        """Slots that are reclaimed and not on their way yet."""
        return 0 if self.demand is None or self.revoking else max(0, self.num_kept - self.demand.keep)

    def is_overdue(self, now: float) -> bool:
        """Whether it was reclaimed for too long."""
        return self.num_demanded > 0 and self.demand is not None and now >= self.demand.until + LAST_CALL_S

    @property
    def num_blocks(self) -> int:
        """Slots that are not back."""
        return len(self.slots) - len(self.returned)

    @property
    def num_returning(self) -> int:
        """Slots that are on their way back."""
        return self.num_blocks if self.revoking else len(self.closing)

    @property
    def num_kept(self) -> int:
        """Slots that are neither back nor on their way."""
        return self.num_blocks - len(self.closing)

    def positions(self) -> list[int]:
        """Those whose slots are not back."""
        return [position for position in range(len(self.slots)) if position not in self.returned]


class LoanBook:
    """Loans of one instance. Methods change state and return what to tell whom; they send nothing."""

    def __init__(self, pool: BlockPool, incarnation: int, max_lease_s: float) -> None:
        self._pool = pool
        self._incarnation = incarnation
        self._max_lease_s = max_lease_s
        self._last_number = 0
        self._num_avoidable = 0
        self._expire_at: Timers[str] = Timers()
        self._by_debtor: dict[str, dict[str, Loan]] = {}
        self.loans: dict[str, Loan] = {}

    @property
    def num_blocks(self) -> int:
        """Slots granted, filled or not."""
        return self._pool.count(SlotState.LENT) + self._pool.count(SlotState.RESERVED)

    @property
    def num_spans(self) -> int:
        """Spans that are lent, those on their way back included."""
        return len(self.loans)

    @property
    def has_avoidable(self) -> bool:
        """Whether anything is lent to a request that its own instance could hold."""
        return self._num_avoidable > 0

    def by_request(self) -> dict[str, int]:
        """Slots granted for each request."""
        held: dict[str, int] = {}
        for loan in self.loans.values():
            held[loan.request_id] = held.get(loan.request_id, 0) + loan.num_blocks
        return held

    def has_lent_for(self, debtor_id: str, request_id: str) -> bool:
        """Whether a debtor has borrowed for this request, and is to give nothing of that back."""
        loans = [loan for loan in self._by_debtor.get(debtor_id, {}).values() if loan.request_id == request_id]
        return bool(loans) and not any(loan.demand or loan.revoking for loan in loans)

    def held(self) -> list[Loan]:
        """Loans that are not being revoked."""
        return [loan for loan in self.loans.values() if not loan.revoking]

    def find(self, span_id: str) -> Loan | None:
        """The loan of that name in whatever epoch, also if it is being revoked."""
        return self.loans.get(span_id)

    def get(self, span: SpanRef) -> Loan | None:
        """The loan of this span in this epoch, unless it is being revoked."""
        loan = self.loans.get(span.span_id)
        return loan if loan is not None and loan.span == span and not loan.revoking else None

    def try_grant(
        self, route: bytes, wanted: TryMoveKvcache, lendable: int, now: float, kept: int = 0
    ) -> tuple[Granted | Refused, bool]:
        """Reserve what can be lent of what is wanted, but for what is kept for others; the flag says whether the worker
        must hear of a new span."""
        held = self.loans.get(wanted.span_id)
        if held is not None:
            if held.revoking or held.debtor_id != wanted.debtor_id or held.route != route:
                why = "the span is being revoked" if held.revoking else "the span is another debtor's"
                return Refused(span_id=wanted.span_id, reason=why, free_blocks=lendable), False
            ttl_s = max(0.0, held.expires_at - now)
            return Granted(span_id=wanted.span_id, epoch=held.span.epoch, slots=held.slots, ttl_s=ttl_s), False
        num_blocks = min(wanted.num_blocks, lendable - kept, MAX_GRANTED_BLOCKS)
        slots = self._pool.allocate(num_blocks, SlotState.RESERVED) if num_blocks > 0 else None
        if slots is None:
            is_kept = 0 < lendable <= kept
            why = "what is free is kept for requests that wait" if is_kept else "nothing to lend"
            return Refused(span_id=wanted.span_id, reason=why, free_blocks=max(0, lendable), is_kept=is_kept), False
        self._last_number += 1
        ttl_s = self.lease_s(wanted.ttl_s)
        span = SpanRef(span_id=wanted.span_id, epoch=Epoch(self._incarnation, self._last_number))
        loan = self.loans[wanted.span_id] = Loan(
            span=span,
            request_id=wanted.request_id,
            debtor_id=wanted.debtor_id,
            debtor_incarnation=wanted.debtor_incarnation,
            route=route,
            slots=tuple(slots),
            expires_at=now + ttl_s,
            granted_at=now,
            is_avoidable=wanted.is_avoidable,
        )
        self._num_avoidable += loan.is_avoidable
        self._by_debtor.setdefault(loan.debtor_id, {})[wanted.span_id] = loan
        self._expire_at.set(wanted.span_id, now + ttl_s)
        return Granted(span_id=wanted.span_id, epoch=span.epoch, slots=tuple(slots), ttl_s=ttl_s), True

    def answer_again(self, ready: BlocksReady) -> Complete | None:
        """The answer to a `BlocksReady` whose blocks were taken over already: the one given then was lost."""
        loan = self.get(ready.span)
        if loan is None or loan.blocks_ready != ready or loan.filled != ready.index + len(ready.blocks):
            return None
        return Complete(span=ready.span, index=ready.index, num_blocks=len(ready.blocks))

    def is_reading(self, ready: BlocksReady) -> bool:
        """Whether just these blocks are being read, so that the answer is on its way."""
        loan = self.get(ready.span)
        return loan is not None and loan.pulling > 0 and loan.blocks_ready == ready

    def start_pull(self, ready: BlocksReady) -> tuple[Loan, tuple[int, ...]] | str:
        """The slots that blocks that lie ready go into, or why they cannot be taken."""
        loan = self.get(ready.span)
        if loan is None:
            return "no such span in this epoch"
        if loan.pulling:
            return "the blocks before are still being read"
        if ready.index != loan.filled or not ready.blocks:
            return f"expected blocks from position {loan.filled} on, got {ready.index}"
        if ready.index + len(ready.blocks) > len(loan.slots):
            return f"{len(ready.blocks)} blocks at {ready.index} do not fit into {len(loan.slots)}"
        if any(p in loan.closing or p in loan.returned for p in range(ready.index, ready.index + len(ready.blocks))):
            return "some of these positions were given back"
        loan.pulling, loan.blocks_ready = len(ready.blocks), ready
        return loan, loan.slots[ready.index : ready.index + loan.pulling]

    def end_pull(self, loan: Loan, ok: bool) -> None:
        """A pull is over; if it went well its blocks are part of the span."""
        count, loan.pulling = loan.pulling, 0
        if ok:
            arrived = [p for p in range(loan.filled, loan.filled + count) if p not in loan.returned]
            self._pool.change([loan.slots[p] for p in arrived], SlotState.RESERVED, SlotState.LENT)
            loan.filled += count

    def renew(
        self, spans: tuple[SpanRef, ...], route: bytes, ttl_s: float, now: float, room: int = 0
    ) -> tuple[SpanRef, ...]:
        """Extend leases of a debtor that has so much room at home; returns those refused: unknown, another's, on its
        way back, or reclaimed for too long."""
        refused = []
        for span in spans:
            loan = self.get(span)
            if loan is None or loan.route != route or loan.is_overdue(now):
                refused.append(span)
            else:
                loan.debtor_room = room
                loan.expires_at = now + self.lease_s(ttl_s)
                self._expire_at.set(span.span_id, loan.expires_at)
        return tuple(refused)

    def reclaim(self, loan: Loan, demand: Demand | None) -> None:
        """The debtor is to give some of it back, or need not (any more)."""
        loan.demand = demand

    def lease_s(self, wanted_s: float) -> float:
        """How long a lease holds for which `wanted_s` are requested."""
        return min(wanted_s, self._max_lease_s)

    def revoke(self, loan: Loan, tell_debtor: bool) -> bool:
        """Begin to take a span back; true if the worker must get a `Revoke` (it was not on its way already)."""
        loan.tell_debtor = loan.tell_debtor or tell_debtor
        if loan.revoking:
            return False
        loan.revoking = True
        self._expire_at.cancel(loan.span.span_id)
        return True

    def close(self, loan: Loan, positions: Iterable[int]) -> tuple[int, ...]:
        """Begin to take positions of a span back; returns those that the worker must get a `Revoke` for."""
        fresh = {p for p in positions if p < len(loan.slots) and p not in loan.closing and p not in loan.returned}
        loan.closing |= fresh
        return tuple(sorted(fresh))

    def revoked(self, span: SpanRef, positions: tuple[int, ...] = ()) -> Loan | None:
        """The worker says nobody uses the span, or these positions of it: their slots are free."""
        loan = self.loans.get(span.span_id)
        if loan is None or loan.span != span:
            return None
        if positions:
            self._free(loan, [position for position in positions if position in loan.closing])
        elif loan.revoking:
            self._free(loan, loan.positions())
            self._remove(loan)
        else:
            return None
        return loan

    def _remove(self, loan: Loan) -> None:
        del self.loans[loan.span.span_id]
        self._num_avoidable -= loan.is_avoidable
        of_debtor = self._by_debtor[loan.debtor_id]
        del of_debtor[loan.span.span_id]
        if not of_debtor:
            del self._by_debtor[loan.debtor_id]

    def _free(self, loan: Loan, positions: list[int]) -> None:
        loan.closing.difference_update(positions)
        loan.returned.update(positions)
        self._pool.free([loan.slots[p] for p in positions if p < loan.filled], SlotState.LENT)
        self._pool.free([loan.slots[p] for p in positions if p >= loan.filled], SlotState.RESERVED)

    def next_deadline(self) -> float:
        """When the first lease runs out."""
        return self._expire_at.next_at()

    def expired(self, now: float) -> list[Loan]:
        """Loans whose lease has run out; each is returned once."""
        return [self.loans[span_id] for span_id in self._expire_at.take_due(now)]

    def of_debtor(self, debtor_id: str) -> list[Loan]:
        """Loans to an instance, in any of its incarnations, that are not being revoked. Costs what it was lent."""
        return [loan for loan in self._by_debtor.get(debtor_id, {}).values() if not loan.revoking]

    def debtors(self) -> tuple[Debtor, ...]:
        """How many blocks each debtor holds, by id."""
        return tuple(
            Debtor(debtor_id, sum(loan.num_blocks for loan in loans.values()))
            for debtor_id, loans in sorted(self._by_debtor.items())
        )

    def validate(self) -> None:
        """Slots of loans are disjoint, and the pool counts them as lent or reserved."""
        held = [(loan.slots[p], p < loan.filled) for loan in self.loans.values() for p in loan.positions()]
        assert len(held) == len({slot for slot, _ in held}), "a slot is lent twice"
        assert sum(is_filled for _, is_filled in held) == self._pool.count(SlotState.LENT)
        assert len(held) == self.num_blocks
        filed = {
            span_id: (debtor_id, loan) for debtor_id, of in self._by_debtor.items() for span_id, loan in of.items()
        }
        assert filed == {span_id: (loan.debtor_id, loan) for span_id, loan in self.loans.items()}, "misfiled by debtor"
        assert all(self._by_debtor.values()), "a debtor without a loan is kept"
        assert self._num_avoidable == sum(loan.is_avoidable for loan in self.loans.values())
        for loan in self.loans.values():
            assert not loan.closing & loan.returned and loan.closing | loan.returned <= set(range(len(loan.slots)))
            assert loan.revoking or loan.num_kept, f"{loan.span.span_id} is lent without a slot"
            assert loan.revoking != (loan.span.span_id in self._expire_at), f"{loan.span.span_id} never ends"
        self._expire_at.validate()
