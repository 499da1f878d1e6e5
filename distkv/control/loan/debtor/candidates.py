"""Whom a debtor asks for memory, and in which order."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from random import Random

from distkv.control.loan.debtor.borrow import Borrow, Purpose
from distkv.control.loan.debtor.paths import Path, PathBook
from distkv.control.rmanager.peers.member_table import MemberTable
from distkv.control.serving.creditor_limits import CreditorLimits
from distkv.wire.messages.to_rmanager import Candidate

MAX_SUSPECTS = 64
"""Told in one query."""
MAX_CACHED = 32
"""Taken from the member list at once, of those that have enough and of the others."""


class Candidates:
    """The choice of one instance: by the member list, by what a borrow was told so far, by the paths, and by what
    creditors can serve."""

    def __init__(
        self,
        instance_id: str,
        members: MemberTable,
        paths: PathBook,
        limits: CreditorLimits,
        entropy: Random,
        owed: Collection[str] = (),
    ) -> None:
        """owed: instances that this one has borrowed from, as they are at any time."""
        self._owed = owed
        self._instance_id = instance_id
        self._members = members
        self._paths = paths
        self._limits = limits
        self._entropy = entropy

    def in_order(
        self, borrow: Borrow, recommended: Iterable[Candidate], kept_at: Collection[str] = ()
    ) -> list[Candidate]:
        """The recommended creditors that may be asked, in this order: creditors with enough memory that this instance's
        steps wait for anyway; the others; those that serve nearly as much as they may; those that a path failed to;
        those that drain.

        Two kinds are asked although nobody recommends them, for they may lend to this request alone: its own creditors,
        if no pool holds it, and those at `kept_at`, which keep memory for it."""
        every = list(recommended)
        known = {one.instance_id for one in every}
        others = _may_grow_at(borrow).union(kept_at) - known
        every += [Candidate(creditor_id, 0) for creditor_id in sorted(others)]
        usable = [one for one in every if self.may_ask(borrow, one.instance_id)]
        usable.sort(key=lambda one: self._rank(borrow, one))
        return usable

    def _rank(self, borrow: Borrow, one: Candidate) -> tuple[bool, bool, bool, bool]:
        is_leaving = self._members.is_draining(one.instance_id)
        has_failed = any(map(self._paths.has_failed, self._paths_to(borrow, one.instance_id)))
        is_waited_for = one.instance_id in self._owed and one.free_blocks >= borrow.num_blocks - borrow.granted
        return is_leaving, has_failed, self._limits.is_near(one.instance_id), not is_waited_for

    def cached(self, borrow: Borrow) -> list[Candidate]:
        """By the member list: some that have all that is missing, drawn so that not all debtors take the same; then
        others, by what they have. Costs the same, however many members there are."""
        members, missing = self._members, borrow.num_blocks - borrow.granted
        num_enough = members.num_creditors_with(missing)
        drawn = self._entropy.sample(range(num_enough), min(MAX_CACHED, num_enough))
        chosen = [member for at in drawn for member in members.creditors(at, at + 1)]
        chosen += members.creditors(num_enough, num_enough + MAX_CACHED)
        return [Candidate(member.instance_id, member.free_blocks) for member in chosen]

    def take_next(self, borrow: Borrow) -> str | None:
        """The next to ask; nobody is given out twice."""
        while borrow.candidates:
            candidate = borrow.candidates.pop(0)
            if self.may_ask(borrow, candidate.instance_id):
                return candidate.instance_id
        return None

    def may_ask(self, borrow: Borrow, creditor_id: str) -> bool:
        """Whether this creditor could help now."""
        goes_on = self._members.is_draining(creditor_id) and creditor_id in _may_grow_at(borrow)
        return (
            (self._members.may_lend(creditor_id) or goes_on)
            and (not borrow.stays_near or self._members.is_near(creditor_id))
            and creditor_id not in borrow.exclude
            and creditor_id not in borrow.failed
            and borrow.refusals.get(creditor_id) != 0
            and not self._limits.is_full(creditor_id)
            and not any(map(self._paths.is_in_doubt, self._paths_to(borrow, creditor_id)))
        )

    def suspects(self, borrow: Borrow) -> tuple[str, ...]:
        """Whom the gManager should not recommend to this borrow as long as there are others."""
        doubted = self._paths.doubted_creditors(self._instance_id) | borrow.failed | set(self._members.suspects)
        return tuple(sorted(doubted)[:MAX_SUSPECTS])

    def _paths_to(self, borrow: Borrow, creditor_id: str) -> list[Path]:
        """Those a loan would need. Its worker pulls from here, or from the creditor that the borrow leaves."""
        sources = borrow.exclude or {self._instance_id}
        return [Path(self._instance_id, creditor_id), *(Path(creditor_id, source) for source in sources)]


def _may_grow_at(borrow: Borrow) -> set[str]:
    """Creditors of the request that also lend it what it grows by, or has lost, if its own pool cannot hold it."""
    if borrow.purpose not in (Purpose.PLACE, Purpose.RELIEVE) or borrow.is_avoidable:
        return set()
    return {debt.creditor_id for debt in borrow.seq.placement.debts}
