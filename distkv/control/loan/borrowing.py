"""The debtor's side of the contract: from a need to grants (000 §4.4).

Ask the gManager for candidates, ask these in turn with TryMoveKvcache, query again with the refusals heard, and give
up after a few rounds. While no gManager answers, the cached member list takes its place.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import Enum

from distkv.control.commands import Command, TellGManager, TellPeer
from distkv.control.loan.leases import valid_until
from distkv.control.request.block import Debt
from distkv.control.request.sequence import Sequence
from distkv.control.rmanager.member_table import MemberTable
from distkv.control.timers import Timers
from distkv.wire.messages.common import ANY_EPOCH, SpanRef
from distkv.wire.messages.counters import Counters
from distkv.wire.messages.to_gmanager import BorrowQuery, Refusal
from distkv.wire.messages.to_rmanager import Candidate, Creditors, Granted, Refused, Release, TryMoveKvcache

QUERY_TIMEOUT_S = 0.3
TRY_TIMEOUT_S = 1.0
MAX_ROUNDS = 3


class Purpose(Enum):
    """place: blocks that have no place yet; all or nothing. relieve: move blocks out to make room; any number helps.
    reclaim: the creditor wants its memory back; any number helps."""

    PLACE = "place"
    RELIEVE = "relieve"
    RECLAIM = "reclaim"


@dataclass(slots=True, eq=False)
class Borrow:
    """One attempt to borrow `num_blocks` for a sequence."""

    borrow_id: str
    seq: Sequence
    purpose: Purpose
    num_blocks: int
    exclude: frozenset[str]
    grants: list[Debt] = field(default_factory=list)
    candidates: list[Candidate] = field(default_factory=list)
    refusals: dict[str, int] = field(default_factory=dict)
    trying: str = ""
    span_id: str = ""
    sent_at: float = 0.0
    querying: bool = False
    rounds: int = 0

    @property
    def granted(self) -> int:
        return sum(debt.capacity for debt in self.grants)


class Borrower:
    """All borrows under way. One that has all it wants, or nobody left to try, comes out of `take_finished`."""

    def __init__(
        self,
        instance_id: str,
        incarnation: int,
        lease_s: float,
        lease_margin_s: float,
        emit: Callable[[Command], None],
        members: MemberTable,
        counters: Counters,
    ) -> None:
        self._instance_id = instance_id
        self._incarnation = incarnation
        self._lease_s = lease_s
        self._lease_margin_s = lease_margin_s
        self._emit = emit
        self._members = members
        self._counters = counters
        self._last_number = 0
        self._waits: Timers[str] = Timers()
        self._of: dict[str, dict[str, Borrow]] = {}
        self._count = dict.fromkeys(Purpose, 0)
        self.active: dict[str, Borrow] = {}
        self.finished: deque[Borrow] = deque()

    def start(
        self, seq: Sequence, purpose: Purpose, num_blocks: int, now: float, exclude: Iterable[str] = ()
    ) -> Borrow:
        """Begin to look for `num_blocks` ≥ 1."""
        borrow = Borrow(self._next_id("borrow"), seq, purpose, num_blocks, frozenset(exclude))
        self.active[borrow.borrow_id] = borrow
        self._of.setdefault(seq.request_id, {})[borrow.borrow_id] = borrow
        self._count[purpose] += 1
        self._query(borrow, now)
        return borrow

    def of(self, seq: Sequence, purpose: Purpose | None = None) -> Borrow | None:
        """The borrow under way for a sequence, if any."""
        for borrow in self._of.get(seq.request_id, {}).values():
            if borrow.seq is seq and purpose in (None, borrow.purpose):
                return borrow
        return None

    def is_borrowing(self, purpose: Purpose) -> bool:
        """Whether a borrow for this purpose is under way."""
        return self._count[purpose] > 0

    def grants(self) -> list[Debt]:
        """What borrows were granted that has not become a sequence's yet."""
        return [debt for borrow in [*self.active.values(), *self.finished] for debt in borrow.grants]

    def take_finished(self) -> Borrow | None:
        """The borrow that has ended longest ago, if any; it is given out once."""
        return self.finished.popleft() if self.finished else None

    def cancel(self, seq: Sequence) -> list[Debt]:
        """Forget the sequence's borrows; returns the grants to give back."""
        debts = []
        for borrow in [b for b in self._of.get(seq.request_id, {}).values() if b.seq is seq]:
            self.drop(borrow)
            debts.extend(borrow.grants)
            self._withdraw(borrow)
        return debts

    def on_creditors(self, message: Creditors, now: float) -> None:
        """The gManager answered."""
        borrow = self.active.get(message.borrow_id)
        if borrow is not None and borrow.querying:
            self._consider(borrow, message.candidates, now)

    def on_granted(self, sender: str, message: Granted, now: float) -> tuple[Sequence, Debt] | None:
        """A creditor granted: the debt that begins; None if nobody waits for it (any more) and the span must be given
        back."""
        borrow = self._trying(sender, message.span_id)
        if borrow is None:
            return None
        missing = borrow.num_blocks - borrow.granted
        slots = message.slots[:missing]
        borrow.rounds = 0
        if len(slots) < missing:
            borrow.refusals[sender] = 0  # it gave all it has
        until = valid_until(borrow.sent_at, message.ttl_s, self._lease_margin_s)
        span = SpanRef(span_id=message.span_id, epoch=message.epoch)
        debt = Debt(span, sender, slots, until, message.ttl_s)
        borrow.grants.append(debt)
        self._try_next(borrow, now)
        return borrow.seq, debt

    def on_refused(self, sender: str, message: Refused, now: float) -> None:
        """A creditor refused."""
        borrow = self._trying(sender, message.span_id)
        if borrow is not None:
            self._counters.refusals += 1
            borrow.refusals[sender] = message.free_blocks
            self._try_next(borrow, now)

    def forget(self, debt: Debt) -> None:
        """A grant is gone: its lease ran out, or its creditor refused to renew it."""
        for borrow in [*self.active.values(), *self.finished]:
            if debt in borrow.grants:
                borrow.grants.remove(debt)

    def on_peer_lost(self, instance_id: str, now: float) -> None:
        """Ask somebody else; what this peer granted is gone."""
        for borrow in [*self.active.values(), *self.finished]:
            borrow.grants = [debt for debt in borrow.grants if debt.creditor_id != instance_id]
            borrow.candidates = [c for c in borrow.candidates if c.instance_id != instance_id]
            if borrow.trying == instance_id and borrow.borrow_id in self.active:
                borrow.refusals[instance_id] = 0
                self._try_next(borrow, now)

    def tick(self, now: float) -> list[str]:
        """Give up waiting for those who do not answer; returns creditors that did not."""
        silent = []
        for borrow_id in self._waits.take_due(now):
            borrow = self.active[borrow_id]
            if borrow.querying:
                self._consider(borrow, self._cached_candidates(), now)
            elif borrow.trying:
                self._withdraw(borrow)
                silent.append(borrow.trying)
                borrow.refusals[borrow.trying] = 0
                self._try_next(borrow, now)
        return silent

    def next_deadline(self) -> float:
        """When somebody has not answered for too long."""
        return self._waits.next_at()

    def drop(self, borrow: Borrow) -> None:
        """The borrow is under way no more."""
        del self.active[borrow.borrow_id]
        same = self._of[borrow.seq.request_id]
        del same[borrow.borrow_id]
        if not same:
            del self._of[borrow.seq.request_id]
        self._count[borrow.purpose] -= 1
        self._waits.cancel(borrow.borrow_id)

    def _query(self, borrow: Borrow, now: float) -> None:
        borrow.rounds += 1
        borrow.querying, borrow.trying, borrow.sent_at = True, "", now
        self._waits.set(borrow.borrow_id, now + QUERY_TIMEOUT_S)
        refusals = tuple(Refusal(creditor, free) for creditor, free in sorted(borrow.refusals.items()))
        self._emit(
            TellGManager(
                BorrowQuery(
                    instance_id=self._instance_id,
                    borrow_id=borrow.borrow_id,
                    num_blocks=borrow.num_blocks - borrow.granted,
                    refusals=refusals,
                    exclude=tuple(sorted(borrow.exclude)),
                )
            )
        )

    def _consider(self, borrow: Borrow, candidates: Iterable[Candidate], now: float) -> None:
        skip = borrow.exclude | {creditor for creditor, free in borrow.refusals.items() if free == 0}
        borrow.querying = False
        borrow.candidates = [
            c for c in candidates if self._members.may_lend(c.instance_id) and c.instance_id not in skip
        ]
        if not borrow.candidates:
            borrow.rounds = MAX_ROUNDS
        self._try_next(borrow, now)

    def _cached_candidates(self) -> list[Candidate]:
        members = sorted(self._members.creditors(), key=lambda m: (-m.free_blocks, m.instance_id))
        return [Candidate(m.instance_id, m.free_blocks) for m in members]

    def _try_next(self, borrow: Borrow, now: float) -> None:
        borrow.trying = ""
        missing = borrow.num_blocks - borrow.granted
        if missing > 0 and borrow.candidates:
            creditor = borrow.candidates.pop(0)
            borrow.trying, borrow.span_id, borrow.sent_at = creditor.instance_id, self._next_id("span"), now
            self._waits.set(borrow.borrow_id, now + TRY_TIMEOUT_S)
            wanted = TryMoveKvcache(
                span_id=borrow.span_id,
                request_id=borrow.seq.request_id,
                debtor_id=self._instance_id,
                debtor_incarnation=self._incarnation,
                num_blocks=missing,
                ttl_s=self._lease_s,
            )
            self._emit(TellPeer(creditor.instance_id, wanted))
        elif missing > 0 and borrow.rounds < MAX_ROUNDS and not (borrow.purpose is not Purpose.PLACE and borrow.grants):
            self._query(borrow, now)
        else:
            self.drop(borrow)
            self.finished.append(borrow)

    def _trying(self, creditor_id: str, span_id: str) -> Borrow | None:
        for borrow in self.active.values():
            if borrow.trying == creditor_id and borrow.span_id == span_id:
                return borrow
        return None

    def _withdraw(self, borrow: Borrow) -> None:
        """The creditor may have granted, or may yet: say that the span is not wanted, whatever its epoch."""
        if borrow.trying:
            self._emit(TellPeer(borrow.trying, Release(span=SpanRef(span_id=borrow.span_id, epoch=ANY_EPOCH))))

    def _next_id(self, kind: str) -> str:
        self._last_number += 1
        return f"{kind}-{self._instance_id}-{self._incarnation:x}-{self._last_number}"
