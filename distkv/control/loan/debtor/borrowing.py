"""The debtor's side of the contract: from a need to grants (000 §4.4).

Ask the gManager for candidates, ask these in turn with TryMoveKvcache, query again with the refusals heard, and give
up after a few rounds. While no gManager answers, the cached member list takes its place. A grant counts when the own
worker is linked to the creditor, too: nothing is entrusted to a path that was not seen to work.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping
from random import Random
from typing import Any

from distkv.control.commands import Command, TellGManager, TellPeer, TellWorker
from distkv.control.loan.debtor.borrow import Borrow, BorrowBook, Purpose
from distkv.control.loan.debtor.candidates import Candidates
from distkv.control.loan.debtor.keepers import Keepers
from distkv.control.loan.debtor.leases import valid_until
from distkv.control.loan.debtor.paths import LONGEST_UNUSED_S, Path, PathBook
from distkv.control.request.block import Debt
from distkv.control.request.sequence import Sequence
from distkv.control.rmanager.peers.member_table import MemberTable
from distkv.control.serving.creditor_limits import CreditorLimits
from distkv.control.timers import Timers
from distkv.wire.messages.common import ANY_EPOCH, SpanRef
from distkv.wire.messages.counters import Counters
from distkv.wire.messages.from_worker import Linked
from distkv.wire.messages.to_gmanager import MAX_NAMES, BorrowQuery
from distkv.wire.messages.to_rmanager import Candidate, Creditors, Granted, Refused, Release, TryMoveKvcache
from distkv.wire.messages.to_worker import Link

QUERY_TIMEOUT_S = 0.3
TRY_TIMEOUT_S = 1.0
LINK_TIMEOUT_S = 3.0
"""For the worker to say whether it is linked, counted from the grant."""
MAX_ROUNDS = 3


class Borrower:
    """All borrows under way. One that has all it wants, or nobody left to try, comes out of `take_finished`.

    An event costs what the borrow that it names costs, however many there are.
    """

    def __init__(
        self,
        instance_id: str,
        incarnation: int,
        lease_s: float,
        lease_margin_s: float,
        emit: Callable[[Command], None],
        members: MemberTable,
        paths: PathBook,
        counters: Counters,
        entropy: Random,
        owed: Collection[str],
    ) -> None:
        self._instance_id = instance_id
        self._incarnation = incarnation
        self._lease_s = lease_s
        self._lease_margin_s = lease_margin_s
        self._emit = emit
        self._members = members
        self._paths = paths
        self._counters = counters
        self._limits = CreditorLimits()
        self._candidates = Candidates(instance_id, members, paths, self._limits, entropy, owed)
        self._last_number = 0
        self._book = BorrowBook()
        self._due: Timers[str] = Timers()
        self._keepers = Keepers(members)

    def start(
        self,
        seq: Sequence,
        purpose: Purpose,
        num_blocks: int,
        now: float,
        exclude: Iterable[str] = (),
        movable_tokens: int = 0,
        is_avoidable: bool = False,
        stays_near: bool = False,
        leaves: Debt | None = None,
    ) -> Borrow:
        """Begin to look for `num_blocks` ≥ 1. movable_tokens: as in `BorrowQuery`. stays_near: on this host only.
        leaves: see Borrow; its creditor is not asked."""
        borrow = Borrow(
            self._next_id("borrow"),
            seq,
            purpose,
            num_blocks,
            frozenset(exclude if leaves is None else {*exclude, leaves.creditor_id}),
            movable_tokens,
            is_avoidable,
            stays_near,
            leaves,
        )
        self._book.begin(borrow)
        self._query(borrow, now)
        return borrow

    def start_at(self, creditor_id: str, seq: Sequence, num_blocks: int, now: float) -> Borrow:
        """Begin to look for `num_blocks` ≥ 1 at one creditor, as planned, and at nobody else; once."""
        borrow = Borrow(self._next_id("borrow"), seq, Purpose.PLANNED, num_blocks, frozenset())
        self._book.begin(borrow)
        self._consider(borrow, [Candidate(creditor_id, num_blocks)], now)
        return borrow

    # --- questions

    @property
    def active(self) -> Mapping[str, Borrow]:
        """Those under way, by name."""
        return self._book.active

    @property
    def finished(self) -> deque[Borrow]:
        """Those that are over and were not taken yet."""
        return self._book.finished

    def of(self, seq: Sequence, purpose: Purpose | None = None) -> Borrow | None:
        """The borrow under way for a sequence, if any."""
        return next(iter(self._book.of(seq, purpose)), None)

    def all_of(self, seq: Sequence) -> list[Borrow]:
        """The borrows under way for a sequence, whatever for."""
        return self._book.of(seq)

    def is_borrowing(self, purpose: Purpose) -> bool:
        """Whether a borrow for this purpose is under way."""
        return self._book.is_borrowing(purpose)

    def grants(self) -> list[Debt]:
        """What borrows were granted that has not become a sequence's yet."""
        return [debt for borrow in self._book.all() for debt in borrow.grants]

    def take_finished(self) -> Borrow | None:
        """The borrow that has ended longest ago, if any; it is given out once."""
        if not self.finished:
            return None
        borrow = self.finished.popleft()
        self._book.disown(borrow)
        return borrow

    def next_deadline(self) -> float:
        """When `tick` has something to do."""
        return min(self._due.next_at(), self._limits.next_deadline())

    # --- what happens to them

    def may_keep(self, creditor_id: str, seq: Sequence) -> bool:
        """Whether this creditor had too little for it, and may keep some since."""
        return creditor_id in self._keepers.of(seq)

    def forgo(self, seq: Sequence) -> None:
        """It has its memory, or needs none any more: creditors that had too little are to keep none for it."""
        for creditor_id in self._keepers.take(seq):
            self._emit(TellPeer(creditor_id, self._wanted(seq, self._next_id("span"), 0)))

    def cancel(self, seq: Sequence, purpose: Purpose | None = None) -> list[Debt]:
        """Forget the sequence's borrows, all or those for this purpose; returns the grants to give back."""
        debts = []
        if purpose is None:
            self.forgo(seq)
        for borrow in self._book.of(seq, purpose):
            debts.extend(borrow.grants)
            self._withdraw(borrow)
            self._stop(borrow)
            self._book.disown(borrow)
        return debts

    def on_creditors(self, message: Creditors, now: float) -> None:
        """The gManager answered."""
        borrow = self.active.get(message.borrow_id)
        if borrow is not None and borrow.querying:
            self._consider(borrow, message.candidates, now)

    def on_granted(self, sender: str, message: Granted, now: float) -> tuple[Sequence, Debt] | None:
        """A creditor granted: the debt that begins; None if nobody waits for it (any more) and the span must be given
        back."""
        borrow = self._book.tried(sender, message.span_id)
        if borrow is None:
            return None
        self._limits.granted(sender, message, now)
        missing = borrow.num_blocks - borrow.granted
        slots = message.slots[:missing]
        borrow.rounds = 0
        if len(slots) < missing:
            borrow.note_refusal(sender, 0)  # it gave all it has
            self._may_keep(sender, borrow)
        until = valid_until(borrow.sent_at, message.ttl_s, self._lease_margin_s)
        span = SpanRef(span_id=message.span_id, epoch=message.epoch)
        debt = Debt(span, sender, slots, until, message.ttl_s, is_planned=borrow.purpose is Purpose.PLANNED)
        self.collect(borrow, debt)
        self._end_try(borrow)
        if self._paths.is_linked(self._to(sender)):
            self._try_next(borrow, now)
        else:
            if not borrow.has_asked_for_link:  # the path has failed since the creditor was asked
                self._ask_for_link(borrow, sender)
            self._book.waits_for_link(borrow, sender)
            self._due.set(borrow.borrow_id, now + LINK_TIMEOUT_S)
        return borrow.seq, debt

    def collect(self, borrow: Borrow, debt: Debt) -> None:
        """A borrow under way has been granted this."""
        self._book.collect(borrow, debt)

    def end(self, borrow: Borrow) -> None:
        """A borrow under way is over, with what it has."""
        self._stop(borrow)
        self.finished.append(borrow)

    def on_linked(self, message: Linked, now: float) -> list[Debt]:
        """The worker can send queries to a creditor, or cannot; returns grants to give back."""
        member = self._members.find(message.instance_id)
        if member is None or member.incarnation != message.incarnation:
            return []
        if message.problem:
            return self._cannot_reach(message.instance_id, message.problem, now)
        self._paths.linked(self._to(message.instance_id))
        for borrow in self._book.trying_at(message.instance_id):
            borrow.has_asked_for_link = False  # it was answered
        for borrow in self._book.take_linking(message.instance_id):
            self._try_next(borrow, now)
        return []

    def on_refused(self, sender: str, message: Refused, now: float) -> None:
        """A creditor refused."""
        borrow = self._book.tried(sender, message.span_id)
        if borrow is not None:
            self._counters.refusals += 1
            borrow.note_refusal(sender, message.free_blocks)
            self._may_keep(sender, borrow)
            self._limits.refused(sender, message, now)
            if message.is_kept:
                borrow.failed.add(sender)
            self._try_next(borrow, now)

    def forget(self, debt: Debt) -> None:
        """A grant is gone: its lease ran out, or its creditor refused to renew it."""
        self._book.forget(debt)

    def on_peer_lost(self, instance_id: str, now: float) -> None:
        """Ask somebody else; what this peer granted is gone."""
        self._paths.forget(instance_id)
        self._limits.forget(instance_id)
        self._book.take_linking(instance_id)
        self._keepers.on_peer_lost(instance_id)
        for borrow in self._book.all():
            self._book.forget_all(borrow, instance_id)
            borrow.candidates = [c for c in borrow.candidates if c.instance_id != instance_id]
            if borrow.trying == instance_id and borrow.borrow_id in self.active:
                borrow.failed.add(instance_id)
                self._try_next(borrow, now)

    def tick(self, now: float) -> tuple[list[str], list[Debt]]:
        """Give up waiting for those who do not answer; returns creditors that did not, and grants to give back."""
        self._limits.tick(now)
        silent, unusable = [], []
        for borrow_id in self._due.take_due(now):
            borrow = self.active.get(borrow_id)
            if borrow is None or borrow_id in self._due:  # it went on together with another of them
                continue
            if borrow.querying:
                self._consider(borrow, self._candidates.cached(borrow), now)
            elif borrow.linking:
                unusable += self._cannot_reach(borrow.trying, "the worker does not say that it is linked", now)
            elif borrow.trying:
                self._withdraw(borrow)
                silent.append(borrow.trying)
                borrow.failed.add(borrow.trying)
                self._try_next(borrow, now)
        return silent, unusable

    def _query(self, borrow: Borrow, now: float) -> None:
        """Ask the gManager for candidates. A query names MAX_NAMES at most: of refusals the newest, for it knows the
        older ones. What it recommends all the same, in vain, is left out here."""
        borrow.rounds += 1
        borrow.querying, borrow.sent_at = True, now
        self._due.set(borrow.borrow_id, now + QUERY_TIMEOUT_S)
        self._emit(
            TellGManager(
                BorrowQuery(
                    instance_id=self._instance_id,
                    borrow_id=borrow.borrow_id,
                    num_blocks=borrow.num_blocks - borrow.granted,
                    refusals=borrow.newest_refusals(MAX_NAMES),
                    exclude=tuple(sorted(borrow.exclude)[:MAX_NAMES]),
                    suspects=self._candidates.suspects(borrow),
                    movable_tokens=borrow.movable_tokens,
                    request_id=borrow.seq.request_id if borrow.movable_tokens else "",
                    prompt_tokens=len(borrow.seq.request.tokens) if borrow.movable_tokens else 0,
                )
            )
        )

    def _consider(self, borrow: Borrow, candidates: Iterable[Candidate], now: float) -> None:
        borrow.querying = False
        kept_at = self._keepers.of(borrow.seq) if borrow.purpose is Purpose.PLACE else ()
        borrow.candidates = self._candidates.in_order(borrow, candidates, kept_at)
        if not borrow.candidates:
            borrow.rounds = MAX_ROUNDS
        self._try_next(borrow, now)

    def _try_next(self, borrow: Borrow, now: float) -> None:
        self._end_try(borrow)
        missing = borrow.num_blocks - borrow.granted
        creditor_id = self._candidates.take_next(borrow) if missing > 0 else None
        if creditor_id is not None:
            self._try(borrow, creditor_id, missing, now)
        elif missing > 0 and borrow.rounds < MAX_ROUNDS and borrow.asks_others:
            self._query(borrow, now)
        else:
            self.end(borrow)

    def _try(self, borrow: Borrow, creditor_id: str, missing: int, now: float) -> None:
        """Ask for the rest, and have the worker link meanwhile."""
        self._book.waits_for(borrow, creditor_id, self._next_id("span"))
        borrow.sent_at = now
        self._due.set(borrow.borrow_id, now + TRY_TIMEOUT_S)
        wanted = self._wanted(
            borrow.seq,
            borrow.span_id,
            missing,
            waited_s=max(0.0, now - borrow.seq.request.arrival) if borrow.purpose is Purpose.PLACE else 0.0,
            is_running=borrow.purpose is Purpose.RELIEVE,
            is_avoidable=borrow.is_avoidable,
        )
        self._emit(TellPeer(creditor_id, wanted))
        borrow.has_asked_for_link = False
        if not self._paths.is_linked(self._to(creditor_id)):
            self._ask_for_link(borrow, creditor_id)

    def _ask_for_link(self, borrow: Borrow, creditor_id: str) -> None:
        if (member := self._members.find(creditor_id)) is not None:
            borrow.has_asked_for_link = True
            self._emit(TellWorker(Link(instance_id=creditor_id, incarnation=member.incarnation)))

    def _wanted(self, seq: Sequence, span_id: str, num_blocks: int, **fields: Any) -> TryMoveKvcache:
        return TryMoveKvcache(
            span_id=span_id,
            request_id=seq.request_id,
            debtor_id=self._instance_id,
            debtor_incarnation=self._incarnation,
            num_blocks=num_blocks,
            ttl_s=self._lease_s,
            **fields,
        )

    def _may_keep(self, creditor_id: str, borrow: Borrow) -> None:
        """It had less than it was asked for, and may keep some for the request from now on."""
        if borrow.purpose is Purpose.PLACE:
            self._keepers.add(borrow.seq, creditor_id, borrow.num_blocks)

    def _cannot_reach(self, creditor_id: str, why: str, now: float) -> list[Debt]:
        """No queries get there: what it granted to borrows under way is of no use to them."""
        linking = self._book.take_linking(creditor_id)
        held_s = max((now - borrow.sent_at for borrow in linking), default=0.0)
        path = self._to(creditor_id)
        self._paths.failed(path, why, now, took_s=held_s, longest_s=LONGEST_UNUSED_S, held_s=held_s)
        for borrow in self._book.trying_at(creditor_id):
            self._withdraw(borrow)
            self._try_next(borrow, now)
        unusable: list[Debt] = []
        for borrow in linking:
            unusable += self._book.forget_all(borrow, creditor_id)
            self._try_next(borrow, now)
        return unusable

    def _to(self, creditor_id: str) -> Path:
        return Path(self._instance_id, creditor_id)

    def _end_try(self, borrow: Borrow) -> None:
        """It waits for no creditor any more."""
        self._book.end_try(borrow)
        self._due.cancel(borrow.borrow_id)

    def _stop(self, borrow: Borrow) -> None:
        """It is under way no more."""
        self._end_try(borrow)
        self._book.stop(borrow)

    def _withdraw(self, borrow: Borrow) -> None:
        """The creditor may have granted, or may yet: say that the span is not wanted, whatever its epoch."""
        if borrow.trying and not borrow.linking:
            self._emit(TellPeer(borrow.trying, Release(span=SpanRef(span_id=borrow.span_id, epoch=ANY_EPOCH))))

    def _next_id(self, kind: str) -> str:
        self._last_number += 1
        return f"{kind}-{self._instance_id}-{self._incarnation:x}-{self._last_number}"

    def validate(self) -> None:
        """The book is in order; each that waits has its timer."""
        self._book.validate()
        self._keepers.validate()
        assert all(borrow_id in self._due for borrow_id in self.active), "a borrow would wait for ever"
        self._due.validate()
        self._limits.validate()
