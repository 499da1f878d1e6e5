"""Attempts to borrow memory for sequences, as records, and the book of them; `Borrower` carries them on."""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field
from enum import Enum
from itertools import islice

from distkv.control.request.block import Debt
from distkv.control.request.sequence import Sequence
from distkv.wire.messages.to_gmanager import Refusal
from distkv.wire.messages.to_rmanager import Candidate, MoveKvcache


class Purpose(Enum):
    """place: blocks that have no place yet; all or nothing. relieve: move blocks out to make room; any number helps.
    reclaim: the creditor wants its memory back; any number helps. planned: a gManager wants blocks of it to go to one
    creditor, which alone is asked; any number helps."""

    PLACE = "place"
    RELIEVE = "relieve"
    RECLAIM = "reclaim"
    PLANNED = "planned"


@dataclass(slots=True, eq=False)
class Borrow:
    """One attempt to borrow `num_blocks` for a sequence.

    trying: the creditor that was asked for `span_id`, and then, `linking`, that the worker is to be linked to.
    has_asked_for_link: whether the worker was told to since. movable_tokens: as in `BorrowQuery`. is_avoidable: the own
    pool could hold the request. failed: those that did not answer, that no path leads to, or that keep what is free
    from it; they are not asked again. stays_near: only creditors on the own host are asked. leaves: the debt whose
    creditor wants its memory back. move: that a gManager planned, where nothing of it is done yet. refusals: by
    creditor, what it said last that it may lend, the newest last. granted: rBlocks of all `grants`.
    """

    borrow_id: str
    seq: Sequence
    purpose: Purpose
    num_blocks: int
    exclude: frozenset[str]
    movable_tokens: int = 0
    is_avoidable: bool = False
    stays_near: bool = False
    leaves: Debt | None = None
    grants: list[Debt] = field(default_factory=list)
    candidates: list[Candidate] = field(default_factory=list)
    refusals: dict[str, int] = field(default_factory=dict)
    failed: set[str] = field(default_factory=set)
    trying: str = ""
    span_id: str = ""
    sent_at: float = 0.0
    querying: bool = False
    linking: bool = False
    has_asked_for_link: bool = False
    rounds: int = 0
    move: MoveKvcache | None = None
    granted: int = 0

    @property
    def asks_others(self) -> bool:
        """Whether the gManager may be asked for more creditors: not where one was planned, or any number helps."""
        return self.purpose is Purpose.PLACE or (self.purpose is not Purpose.PLANNED and not self.grants)

    def note_refusal(self, creditor_id: str, free_blocks: int) -> None:
        """This creditor has granted less than it was asked for, and may lend so many more."""
        self.refusals.pop(creditor_id, None)
        self.refusals[creditor_id] = free_blocks

    def newest_refusals(self, most: int) -> tuple[Refusal, ...]:
        """So many of those heard last, by creditor."""
        newest = islice(reversed(self.refusals.items()), most)
        return tuple(Refusal(creditor_id, free) for creditor_id, free in sorted(newest))


class BorrowBook:
    """All borrows under way, by what an event may name, and those that are over and were not taken yet.

    An event costs what the borrow that it names costs, however many there are.
    """

    def __init__(self) -> None:
        self.active: dict[str, Borrow] = {}
        self.finished: deque[Borrow] = deque()
        self._of: dict[Sequence, list[Borrow]] = {}
        self._purposes: Counter[Purpose] = Counter()
        self._trying: dict[str, Borrow] = {}
        self._linking: dict[str, set[str]] = {}
        self._granted: dict[str, Borrow] = {}

    # --- questions

    def of(self, seq: Sequence, purpose: Purpose | None = None) -> list[Borrow]:
        """The borrows under way for a sequence."""
        return [borrow for borrow in self._of.get(seq, ()) if purpose in (None, borrow.purpose)]

    def is_borrowing(self, purpose: Purpose) -> bool:
        """Whether a borrow for this purpose is under way."""
        return self._purposes[purpose] > 0

    def all(self) -> list[Borrow]:
        """Those under way, and those that are over and were not taken yet."""
        return [*self.active.values(), *self.finished]

    def tried(self, creditor_id: str, span_id: str) -> Borrow | None:
        """The one that waits for a creditor's answer about this span."""
        borrow = self._trying.get(span_id)
        return borrow if borrow is not None and borrow.trying == creditor_id else None

    def trying_at(self, creditor_id: str) -> list[Borrow]:
        """Those that wait for an answer of this creditor."""
        return [borrow for borrow in self._trying.values() if borrow.trying == creditor_id]

    # --- what happens to them

    def begin(self, borrow: Borrow) -> None:
        """It is under way."""
        self.active[borrow.borrow_id] = borrow
        self._of.setdefault(borrow.seq, []).append(borrow)
        self._purposes[borrow.purpose] += 1

    def waits_for(self, borrow: Borrow, creditor_id: str, span_id: str) -> None:
        """It has asked a creditor for this span."""
        borrow.trying, borrow.span_id = creditor_id, span_id
        self._trying[span_id] = borrow

    def waits_for_link(self, borrow: Borrow, creditor_id: str) -> None:
        """It was granted something; the worker is to be linked to the creditor."""
        borrow.trying, borrow.linking = creditor_id, True
        self._linking.setdefault(creditor_id, set()).add(borrow.borrow_id)

    def take_linking(self, creditor_id: str) -> list[Borrow]:
        """Those that waited for a link to this creditor, and do so no more."""
        return [self.active[borrow_id] for borrow_id in sorted(self._linking.pop(creditor_id, ()))]

    def end_try(self, borrow: Borrow) -> None:
        """It waits for no creditor any more."""
        self._trying.pop(borrow.span_id, None)
        if borrow.linking and (waiting := self._linking.get(borrow.trying)) is not None:
            waiting.discard(borrow.borrow_id)
            if not waiting:
                del self._linking[borrow.trying]
        borrow.trying, borrow.linking = "", False

    def collect(self, borrow: Borrow, debt: Debt) -> None:
        """A borrow under way has been granted this."""
        borrow.grants.append(debt)
        borrow.granted += debt.capacity
        self._granted[debt.span.span_id] = borrow

    def forget(self, debt: Debt) -> None:
        """A grant is gone: its lease ran out, or its creditor refused to renew it."""
        borrow = self._granted.pop(debt.span.span_id, None)
        if borrow is not None:
            borrow.grants.remove(debt)
            borrow.granted -= debt.capacity

    def forget_all(self, borrow: Borrow, creditor_id: str) -> list[Debt]:
        """What a creditor granted is of no use; returns it."""
        dropped = [debt for debt in borrow.grants if debt.creditor_id == creditor_id]
        for debt in dropped:
            self.forget(debt)
        return dropped

    def stop(self, borrow: Borrow) -> None:
        """It is under way no more, and waits for nobody."""
        del self.active[borrow.borrow_id]
        self._purposes[borrow.purpose] -= 1
        of_seq = self._of[borrow.seq]
        of_seq.remove(borrow)
        if not of_seq:
            del self._of[borrow.seq]

    def disown(self, borrow: Borrow) -> None:
        """Its grants are somebody else's now."""
        for debt in borrow.grants:
            del self._granted[debt.span.span_id]

    def validate(self) -> None:
        """The indices are what looking at all borrows would say."""
        active = list(self.active.values())
        if not active and not self.finished:
            kept = self._of, self._trying, self._linking, self._granted
            assert not any(kept) and not any(self._purposes.values()), "what is over is in an index"
            return
        assert all(b.granted == sum(debt.capacity for debt in b.grants) for b in self.all()), "grants miscounted"
        assert self._purposes == Counter(borrow.purpose for borrow in active)
        assert sorted(id(b) for held in self._of.values() for b in held) == sorted(id(b) for b in active)
        assert {b.span_id for b in active if b.trying and not b.linking} == self._trying.keys()
        assert {(b.trying, b.borrow_id) for b in active if b.linking} == {
            (creditor, borrow_id) for creditor, waiting in self._linking.items() for borrow_id in waiting
        }
        assert {debt.span.span_id for borrow in self.all() for debt in borrow.grants} == self._granted.keys()
