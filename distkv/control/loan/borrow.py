"""One attempt to borrow memory for a sequence, as a record; `Borrower` carries it on."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from distkv.control.request.block import Debt
from distkv.control.request.sequence import Sequence
from distkv.wire.messages.to_rmanager import Candidate


class Purpose(Enum):
    """place: blocks that have no place yet; all or nothing. relieve: move blocks out to make room; any number helps.
    reclaim: the creditor wants its memory back; any number helps."""

    PLACE = "place"
    RELIEVE = "relieve"
    RECLAIM = "reclaim"


@dataclass(slots=True, eq=False)
class Borrow:
    """One attempt to borrow `num_blocks` for a sequence.

    trying: the creditor that was asked for `span_id`, and then, `linking`, that the worker is to be linked to.
    failed: those that did not answer, or that no path leads to; they are not asked again.
    """

    borrow_id: str
    seq: Sequence
    purpose: Purpose
    num_blocks: int
    exclude: frozenset[str]
    grants: list[Debt] = field(default_factory=list)
    candidates: list[Candidate] = field(default_factory=list)
    refusals: dict[str, int] = field(default_factory=dict)
    failed: set[str] = field(default_factory=set)
    trying: str = ""
    span_id: str = ""
    sent_at: float = 0.0
    querying: bool = False
    linking: bool = False
    rounds: int = 0

    @property
    def granted(self) -> int:
        return sum(debt.capacity for debt in self.grants)
