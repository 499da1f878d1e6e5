"""Which of its loans a creditor wants back first: rules without state."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Lent:
    """One loan as the choice sees it. kept: rBlocks that are not on their way back; filled: of them, those that hold
    something, which its debtor must bring elsewhere first. is_avoidable: its debtor alone could hold the request. room:
    rBlocks that its debtor has free at home."""

    span_id: str
    kept: int
    filled: int
    granted_at: float
    is_avoidable: bool = False
    debtor_id: str = ""
    room: int = 0


def choose(loans: Iterable[Lent], needed: int, most: int) -> list[tuple[str, int]]:
    """Spans to take back from, and how many rBlocks each debtor may keep: `needed` in all, and never more than `most`.

    Those first that were avoidable; of these those whose blocks cost the fewest transfers; of these the largest, so
    that few requests are disturbed; of these the oldest.
    """
    missing = min(needed, most)

    def cost(loan: Lent) -> tuple[bool, float, int, float, str]:
        given = min(loan.kept, missing)
        moved = max(0, given - (loan.kept - loan.filled))
        return not loan.is_avoidable, moved / given, -given, loan.granted_at, loan.span_id

    chosen = []
    rest = {loan.span_id: loan for loan in loans if loan.kept}
    while missing > 0 and rest:
        loan = min(rest.values(), key=cost)
        del rest[loan.span_id]
        given = min(loan.kept, missing)
        chosen.append((loan.span_id, loan.kept - given))
        missing -= given
    return chosen


def choose_served(loans: Iterable[Lent], needed: int, beyond: int) -> list[tuple[str, int]]:
    """Spans to take back from because they are served, and how many rBlocks each debtor may keep: `needed` that hold
    something, of each debtor those that it has room for, and `beyond` in all for which there is none. What holds
    nothing is not served, and goes with it.

    The youngest first, for before it came all was well; of equally old ones the largest.
    """
    chosen: list[tuple[str, int]] = []
    rooms: dict[str, int] = {}
    for loan in sorted(loans, key=lambda loan: (-loan.granted_at, -loan.filled, loan.span_id)):
        room = rooms.setdefault(loan.debtor_id, loan.room)
        given = min(loan.filled, needed, room + beyond)
        if given > 0:
            chosen.append((loan.span_id, loan.filled - given))
            needed -= given
            rooms[loan.debtor_id] = max(0, room - given)
            beyond -= max(0, given - room)
    return chosen
