"""Which of its loans a creditor wants back first: rules without state."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Lent:
    """One loan as the choice sees it. kept: rBlocks that are not on their way back; filled: of them, those that hold
    something, which its debtor must bring elsewhere first."""

    span_id: str
    kept: int
    filled: int
    granted_at: float


def choose(loans: Iterable[Lent], needed: int, most: int) -> list[tuple[str, int]]:
    """Spans to take back from, and how many rBlocks each debtor may keep: `needed` in all, and never more than `most`.

    Those first whose blocks cost the fewest transfers; of these the largest, so that few requests are disturbed; of
    these the oldest.
    """
    missing = min(needed, most)

    def cost(loan: Lent) -> tuple[float, int, float, str]:
        given = min(loan.kept, missing)
        moved = max(0, given - (loan.kept - loan.filled))
        return moved / given, -given, loan.granted_at, loan.span_id

    chosen = []
    rest = {loan.span_id: loan for loan in loans if loan.kept}
    while missing > 0 and rest:
        loan = min(rest.values(), key=cost)
        del rest[loan.span_id]
        given = min(loan.kept, missing)
        chosen.append((loan.span_id, loan.kept - given))
        missing -= given
    return chosen
