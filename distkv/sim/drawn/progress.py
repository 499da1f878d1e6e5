"""No request goes without a token for long while memory for it exists: what fails elsewhere must not hold it up."""

from __future__ import annotations

from collections.abc import Mapping

from distkv.control.request.sequence import SeqState, Sequence
from distkv.sim.drawn.client import Outcome
from distkv.sim.drawn.fake_worker import FakeWorker
from distkv.sim.machines.node import Node

MOST_S = 15.0
"""How long a request may go without a token while it could have one: some leases, time-outs and retries."""


class ProgressWatch:
    """Looks at the requests of all instances, again and again; nodes and outcomes are those of the cluster."""

    def __init__(
        self, nodes: Mapping[str, Node[FakeWorker]], owner: Mapping[str, str], outcomes: Mapping[str, Outcome]
    ) -> None:
        self._nodes = nodes
        self._owner = owner
        self._outcomes = outcomes
        self._since: dict[str, tuple[Sequence, int, float]] = {}

    def validate(self, now: float) -> None:
        """AssertionError for a request that got no token for MOST_S although it could go on all the time."""
        watched: dict[str, tuple[Sequence, int, float]] = {}
        for request_id, name in self._owner.items():
            seq = self._nodes[name].rm.state.sequences.get(request_id)
            if seq is None or self._outcomes[request_id].done:
                continue
            count = len(self._outcomes[request_id].tokens)
            before = self._since.get(request_id)
            if before is None or before[:2] != (seq, count) or not self.could_go_on(self._nodes[name], seq):
                watched[request_id] = seq, count, now
                continue
            watched[request_id] = before
            assert now - before[2] <= MOST_S, (
                f"{request_id} at {name}, {seq.state.value}, got no token after its {count} for "
                f"{now - before[2]:.1f} s, while it could have {self._available(self._nodes[name], seq)} blocks"
            )
        self._since = watched

    def could_go_on(self, node: Node[FakeWorker], seq: Sequence) -> bool:
        """Whether its instance computes, it is its turn, and there is memory for all of it that lies nowhere sound."""
        state = node.rm.state
        if not node.runs or node.worker.stalled:
            return False
        others = [s for s in state.sequences.values() if s is not seq]
        if seq.state is not SeqState.RUNNING:
            is_oldest = all(s.state is SeqState.RUNNING or s.age > seq.age for s in others)
            if not is_oldest or len(state.running()) >= node.settings.max_num_seqs:
                return False
        needed = -(-(seq.length + 1) // node.settings.block_tokens)
        has_slot = seq.placement.num_local_slots > 0 or state.pool.num_free > len(others)
        return has_slot and needed + len(others) + 1 <= self._available(node, seq)

    def _available(self, node: Node[FakeWorker], seq: Sequence) -> int:
        """Blocks it holds where they are sound, and those that it could have there and here."""
        sound = {name for name, other in self._nodes.items() if other is not node and self.is_sound(node, other)}
        held = sum(debt.capacity for debt in seq.placement.debts if debt.creditor_id in sound)
        free = sum(self._nodes[name].rm.state.lendable() for name in sound)
        return seq.placement.num_local_slots + node.rm.state.pool.num_free + held + free

    @staticmethod
    def is_sound(debtor: Node[FakeWorker], creditor: Node[FakeWorker]) -> bool:
        """Whether one could lend to the other: it is there, both know each other, and blocks get through."""
        ours, theirs = debtor.settings.instance_id, creditor.settings.instance_id
        return (
            creditor.runs
            and creditor.rm.state.instance_state == "ready"
            and theirs in debtor.rm.state.members
            and ours in creditor.rm.state.members
            and theirs not in debtor.worker.cut_from
            and ours not in creditor.worker.cut_from
            and not creditor.worker.pulls_fail
        )
