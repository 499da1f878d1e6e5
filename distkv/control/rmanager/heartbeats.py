"""What an rManager tells the gManager every period: what changed since the last heartbeat that was acknowledged.

Numbers are absolute, so a lost, repeated or overtaken heartbeat does no harm (001 §6.1). The gManager may know more
than it acknowledged: all that changed since then is sent, also what has changed back.
"""

from __future__ import annotations

from heapq import nlargest

from distkv.control.blocks import SlotState
from distkv.control.rmanager.state import RManagerState
from distkv.types import ServingState
from distkv.wire.messages.to_gmanager import MAX_REPORTED, Heartbeat, RequestPlacementEntry
from distkv.wire.messages.to_rmanager import HeartbeatAck

PlacementMap = dict[tuple[str, bool], int]
"""Blocks here by request, and whether they are of a request served here."""
KEPT_HEARTBEATS = 64
"""Changes are remembered for so many heartbeats; if none of these is acknowledged, the next ones are full."""
EARLY_S = 0.1


class Heartbeats:
    """Builds heartbeats of one instance."""

    def __init__(self, state: RManagerState) -> None:
        self._state = state
        self._seq = 0
        self._base = 0
        self._full = True
        self._reported: PlacementMap = {}
        self._changed_in: dict[tuple[str, bool], int] = {}  # by the heartbeat that reported it last
        self._next_at = 0.0
        self._last_at = 0.0
        self._reported_lendable = 0
        self._reported_state: ServingState = "ready"
        self._step_s = 0.0

    def on_step(self, compute_s: float) -> None:
        """Remember how long steps take (exponential mean)."""
        self._step_s = compute_s if self._step_s == 0 else 0.9 * self._step_s + 0.1 * compute_s

    def on_lendable_reported(self) -> None:
        """A debtor got to know what can be lent, and passes it on to the gManager."""
        self._reported_lendable = min(self._reported_lendable, self._lendable())

    def due(self, now: float) -> bool:
        """Whether a period has gone by, memory has come free that others may be waiting for, or a drain has begun."""
        if now < self.next_deadline():
            return False
        self._last_at, self._next_at = now, now + self._state.settings.heartbeat_s
        return True

    def next_deadline(self) -> float:
        """When the next heartbeat is due, as things are now."""
        state = self._state.instance_state
        if state != self._reported_state or self._lendable() > self._reported_lendable:
            return min(self._next_at, self._last_at + EARLY_S)
        return self._next_at

    def build(self, waiting_blocks: int) -> Heartbeat:
        """The next heartbeat."""
        state = self._state
        self._seq += 1
        current = self._placement()
        for key in current.keys() | self._reported.keys():
            if current.get(key) != self._reported.get(key):
                self._changed_in[key] = self._seq
        self._reported = current
        oldest = self._seq - KEPT_HEARTBEATS
        if self._base < oldest:
            self._full = True
            self._changed_in = {key: seq for key, seq in self._changed_in.items() if seq > oldest}
        changed = dict(current) if self._full else {key: current.get(key, 0) for key in self._changed_in}
        for key in sorted(changed, key=lambda key: self._changed_in.get(key, 0))[MAX_REPORTED:]:
            del changed[key]
            self._changed_in[key] = self._seq + 1  # not told yet, whatever is acknowledged
        settings = state.settings
        self._reported_lendable, self._reported_state = self._lendable(), state.instance_state
        return Heartbeat(
            instance_id=settings.instance_id,
            incarnation=settings.incarnation,
            seq=self._seq,
            base=0 if self._full else self._base,
            full=self._full,
            entries=tuple(
                RequestPlacementEntry(req_id=req, inst_id=settings.instance_id, num_blocks=n, local=local)
                for (req, local), n in sorted(changed.items())
            ),
            debtors=tuple(nlargest(MAX_REPORTED, state.loans.debtors(), key=lambda debtor: debtor.num_blocks)),
            state=state.instance_state,
            total_blocks=settings.num_blocks,
            free_blocks=state.pool.num_free,
            lendable_blocks=self._reported_lendable,
            running=len(state.running()),
            waiting=state.sequences.num_waiting,
            waiting_blocks=waiting_blocks,
            step_s=self._step_s,
        )

    def on_ack(self, ack: HeartbeatAck) -> None:
        """The gManager has it, or wants everything."""
        if ack.want_full or ack.want_join:
            if ack.want_full or not self._full:  # who is not let in does not try faster than it beats
                self._next_at = 0.0
            self._full = True
        elif max(self._base + 1, self._seq - KEPT_HEARTBEATS) <= ack.seq <= self._seq:
            self._base, self._full = ack.seq, False
            self._changed_in = {key: seq for key, seq in self._changed_in.items() if seq > ack.seq}

    def _lendable(self) -> int:
        return self._state.lendable() if self._state.instance_state == "ready" else 0

    def _placement(self) -> PlacementMap:
        entries: PlacementMap = {}
        for seq in self._state.sequences.holding():
            if count := seq.placement.num_local_slots:
                entries[seq.request_id, True] = count
        for request_id, count in self._state.loans.by_request().items():
            entries[request_id, False] = count
        return entries

    def validate(self) -> None:
        """The pool agrees with what is reported as lent."""
        lent = sum(n for (_, local), n in self._placement().items() if not local)
        pool = self._state.pool
        assert lent == pool.count(SlotState.LENT) + pool.count(SlotState.RESERVED)
