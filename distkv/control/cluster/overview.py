"""The whole cluster at a glance: how many instances there are, and who owes whom most. Kept up with every heartbeat, so
that to look costs the same however many instances there are."""

from __future__ import annotations

from bisect import bisect_left, insort

from distkv.control.cluster.decisions import Decisions
from distkv.control.cluster.ledger import Entry
from distkv.wire.messages.to_client import ClusterState, DebtEdge
from distkv.wire.messages.to_gmanager import Debtor

MAX_DEBTS = 1024


class Overview:
    """Whoever changes an entry of the ledger files it here too; that costs what the instance lends."""

    def __init__(self, policy: str) -> None:
        """policy: its name."""
        self._policy = policy
        self._ready: set[str] = set()
        self._known: set[str] = set()
        self._reported: dict[str, tuple[Debtor, ...]] = {}
        self._debts: list[tuple[int, str, str]] = []  # (- rBlocks, debtor, creditor), sorted
        self._lent_blocks = 0

    def file(self, entry: Entry) -> None:
        """An entry has changed."""
        instance_id = entry.member.instance_id
        self._known.add(instance_id)
        (self._ready.add if entry.state == "ready" else self._ready.discard)(instance_id)
        self.file_debts(entry)

    def file_debts(self, entry: Entry) -> None:
        """No more than whom it lends to may have changed."""
        instance_id = entry.member.instance_id
        debtors = () if entry.heartbeat is None else entry.heartbeat.debtors
        if debtors or instance_id in self._reported:
            self._lends(instance_id, debtors)

    def drop(self, instance_id: str) -> None:
        """It is not known any more."""
        self._known.discard(instance_id)
        self._ready.discard(instance_id)
        self._lends(instance_id, ())

    @property
    def num_ready(self) -> int:
        """Instances that are ready."""
        return len(self._ready)

    def state(self, decisions: Decisions, now: float) -> ClusterState:
        """As a message has it: the largest debts and how many there are, and what was decided of late."""
        return ClusterState(
            policy=self._policy,
            num_instances=len(self._known),
            num_ready=len(self._ready),
            debts=tuple(DebtEdge(debtor, creditor, -minus) for minus, debtor, creditor in self._debts[:MAX_DEBTS]),
            num_debts=len(self._debts),
            lent_blocks=self._lent_blocks,
            plans=decisions.plans(now),
            num_plans=decisions.num_plans,
            runs=decisions.runs(now),
            num_runs=decisions.num_runs,
        )

    def validate(self, entries: dict[str, Entry], debts: dict[tuple[str, str], int]) -> None:
        """It is what the ledger says. debts: by debtor and creditor."""
        assert self._known == entries.keys(), "members other than those in the ledger"
        assert self._ready == {name for name, entry in entries.items() if entry.state == "ready"}
        ordered = sorted((-blocks, debtor, creditor) for (debtor, creditor), blocks in debts.items())
        assert ordered == self._debts, "debts other than those in the ledger"
        assert self._lent_blocks == sum(debts.values())

    def _lends(self, creditor_id: str, debtors: tuple[Debtor, ...]) -> None:
        reported = self._reported.get(creditor_id, ())
        if reported == debtors:
            return
        before, lent = _by_debtor(reported), _by_debtor(debtors)
        for debtor_id in before.keys() | lent.keys():
            was, now = before.get(debtor_id, 0), lent.get(debtor_id, 0)
            if was and was != now:
                del self._debts[bisect_left(self._debts, (-was, debtor_id, creditor_id))]
            if now and was != now:
                insort(self._debts, (-now, debtor_id, creditor_id))
            self._lent_blocks += now - was
        if debtors:
            self._reported[creditor_id] = debtors
        else:
            del self._reported[creditor_id]


def _by_debtor(debtors: tuple[Debtor, ...]) -> dict[str, int]:
    """The last word on each, of those that have any."""
    return {debtor.instance_id: debtor.num_blocks for debtor in debtors if debtor.num_blocks}
