"""What an rManager tells the gManager every period: what changed since the last heartbeat that was acknowledged.

Numbers are absolute, so a lost, repeated or overtaken heartbeat does no harm (001 §6.1). The gManager may know more
than it acknowledged: all that changed since then is sent, also what has changed back.
"""

from __future__ import annotations

from collections import deque
from heapq import nlargest
from itertools import islice

from distkv.control.blocks import SlotState
from distkv.control.request.sequence import SeqState, Sequence
from distkv.control.rmanager.state import RManagerState
from distkv.types import MAX_INT, ServingState
from distkv.wire.messages.to_gmanager import (
    MAX_ARRIVED,
    MAX_LONGEST,
    MAX_REPORTED,
    DroppedMove,
    Heartbeat,
    LongRequest,
    RequestPlacementEntry,
)
from distkv.wire.messages.to_rmanager import HeartbeatAck

PlacementMap = dict[tuple[str, bool], int]
"""Blocks here by request, and whether they are of a request served here."""
KEPT_HEARTBEATS = 64
"""Changes are remembered for so many heartbeats; if none of these is acknowledged, the next ones are full."""
LOOKED_AT = 8
"""Of those that came last, for one that waits."""
EARLY_S = 0.1
IN_VAIN, IN_VAIN_S = 4, 1.0
"""Early heartbeats for requests that come while the gManager's last answer knew no room for them: so many at once,
then one in so many seconds. Else all instances would beat as often as they may, for nothing, while all are full."""
WANTED_BACK_S = 30.0
"""For so long nothing is planned to go where memory was demanded back: it would be demanded back again."""
GENERATED_S = 5.0
"""What was generated is told of so many seconds."""


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
        self._room_tokens = 0  # elsewhere, by the last answer
        self._in_vain_until = 0.0  # those that were early without known room, one after the other
        self._step_s = 0.0
        self._generated: deque[tuple[float, int]] = deque()  # when heartbeats were made, and tokens until then
        self._arrived: deque[str] = deque(maxlen=MAX_ARRIVED)

    @property
    def newest_seq(self) -> int:
        """Of the heartbeat that was sent last; 0 before the first."""
        return self._seq

    def on_step(self, compute_s: float) -> None:
        """Remember how long steps take (exponential mean)."""
        self._step_s = compute_s if self._step_s == 0 else 0.9 * self._step_s + 0.1 * compute_s

    def on_submitted(self, request_id: str) -> None:
        """A request has come: the next heartbeat knows of it."""
        self._arrived.append(request_id)

    def on_lendable_reported(self) -> None:
        """A debtor got to know what can be lent, and passes it on to the gManager."""
        self._reported_lendable = min(self._reported_lendable, self._lasting())

    def due(self, now: float) -> bool:
        """Whether a period has gone by, memory has come free that others may be waiting for, a request has come that
        waits and could go elsewhere, or a drain has begun."""
        if now < self.next_deadline():
            return False
        if now < self._next_at and not self._has_changed and self._newcomer_tokens > self._room_tokens:
            self._in_vain_until = max(self._in_vain_until, now) + IN_VAIN_S
        self._last_at, self._next_at = now, now + self._state.settings.heartbeat_s
        return True

    def next_deadline(self) -> float:
        """When the next heartbeat is due, as things are now."""
        early_at = self._last_at + EARLY_S
        if not self._has_changed:
            if not (num_tokens := self._newcomer_tokens):
                return self._next_at
            if num_tokens > self._room_tokens:
                early_at = max(early_at, self._in_vain_until - (IN_VAIN - 1) * IN_VAIN_S)
        return min(self._next_at, early_at)

    @property
    def has_news(self) -> bool:
        """Whether the next one is to be early."""
        return self._has_changed or self._newcomer_tokens > 0

    @property
    def _has_changed(self) -> bool:
        """Whether it is in another state than it said, or more memory has come free."""
        return self._state.instance_state != self._reported_state or self._lasting() > self._reported_lendable

    def build(
        self,
        waiting_blocks: int,
        waiting_sizes: tuple[int, ...] = (),
        waiting_tokens: tuple[int, ...] = (),
        dropped_moves: tuple[DroppedMove, ...] = (),
    ) -> Heartbeat:
        """The next heartbeat. waiting_blocks, waiting_sizes, waiting_tokens, dropped_moves: as it tells them, sizes and
        tokens only where `is_planned`."""
        state = self._state
        self._seq += 1
        current = self._placement()
        if current != self._reported:
            for key in self._reported | current:
                if current.get(key) != self._reported.get(key):
                    self._changed_in[key] = self._seq
        self._reported = current
        oldest = self._seq - KEPT_HEARTBEATS
        if self._base < oldest:
            self._full = True
            self._changed_in = {key: seq for key, seq in self._changed_in.items() if seq > oldest}
        changed = dict(current) if self._full else {key: current.get(key, 0) for key in self._changed_in}
        if len(changed) > MAX_REPORTED:
            for key in sorted(changed, key=lambda key: self._changed_in.get(key, 0))[MAX_REPORTED:]:
                del changed[key]
                self._changed_in[key] = self._seq + 1  # not told yet, whatever is acknowledged
        settings = state.settings
        self._reported_lendable, self._reported_state = self._lasting(), state.instance_state
        self._room_tokens = 0  # until it is answered: a gManager that is late is not asked more and more
        arrived = tuple(self._arrived)
        self._arrived.clear()
        context_tokens, prefill_tokens = state.sequences.count_tokens()
        instance_id = settings.instance_id
        return Heartbeat(
            instance_id=instance_id,
            incarnation=settings.incarnation,
            seq=self._seq,
            base=0 if self._full else self._base,
            full=self._full,
            entries=tuple(
                RequestPlacementEntry(req, instance_id, num_blocks, local)
                for (req, local), num_blocks in changed.items()
            ),
            debtors=tuple(nlargest(MAX_REPORTED, state.loans.debtors(), key=lambda debtor: debtor.num_blocks)),
            state=state.instance_state,
            total_blocks=settings.num_blocks,
            free_blocks=state.pool.num_free,
            lendable_blocks=self._lendable(),
            running=len(state.running()),
            waiting=state.sequences.num_waiting,
            waiting_blocks=waiting_blocks,
            step_s=self._step_s,
            context_tokens=context_tokens,
            prefill_tokens=prefill_tokens + state.scheduler.chunk_tokens,
            borrowed_blocks=sum(debt.capacity for debt in state.all_debts()),
            lent_blocks=state.loans.num_blocks,
            waiting_sizes=waiting_sizes,
            decode_base_s=state.scheduler.times.base_s,
            decode_row_s=state.scheduler.times.row_s,
            prompt_token_s=state.scheduler.times.prompt_token_s,
            output_tokens=state.growing.outputs.still_to_come(0, MAX_INT),
            longest=self._longest() if state.is_planned else (),
            growing_blocks=state.growing.blocks(),
            max_num_seqs=settings.max_num_seqs,
            waiting_tokens=waiting_tokens,
            dropped_moves=dropped_moves,
            arrived=arrived,
            generated_per_s=self._generated_per_s(),
            wanted_back=self._last_at - state.demanded_at < WANTED_BACK_S,
        )

    def on_ack(self, ack: HeartbeatAck) -> None:
        """The gManager has it, or wants everything."""
        self._room_tokens = ack.room_tokens
        if ack.want_full or ack.want_join:
            if ack.want_full or not self._full:  # who is not let in does not try faster than it beats
                self._next_at = 0.0
            self._base, self._full = self._seq, True  # what was sent until now is nothing to build on
        elif max(self._base + 1, self._seq - KEPT_HEARTBEATS) <= ack.seq <= self._seq:
            self._base, self._full = ack.seq, False
            self._changed_in = {key: seq for key, seq in self._changed_in.items() if seq > ack.seq}

    @property
    def _newcomer_tokens(self) -> int:
        """Tokens that the newest of those that wait needs memory for, if it has come since the last heartbeat and may
        go where there is memory by the answer; else 0. Those that come next are sent elsewhere, too."""
        newest = self._newcomer()
        return 0 if newest is None else self._state.movable_tokens(newest)

    def _newcomer(self) -> Sequence | None:
        """One that has waited elsewhere counts as older than it is here."""
        sequences = self._state.sequences
        youngest = sequences.queue.waiting.youngest
        if youngest is None or youngest.request.arrival > self._last_at:
            return youngest
        last = (sequences.get(name) for name in islice(reversed(self._arrived), LOOKED_AT))
        return next((one for one in last if one is not None and one.state is SeqState.WAITING), None)

    def _lendable(self) -> int:
        return self._state.lendable() if self._state.instance_state == "ready" else 0

    def _lasting(self) -> int:
        return self._state.lastingly_lendable() if self._state.instance_state == "ready" else 0

    def _longest(self) -> tuple[LongRequest, ...]:
        """Those of the batch that most could leave of, by that, and up to a half of them those that have most
        elsewhere; the older first where that is equal."""
        running = list(self._state.running())
        able = nlargest(MAX_LONGEST, (seq for seq in running if _movable(seq)), key=_movable)
        away = nlargest(MAX_LONGEST // 2, (seq for seq in running if _remote(seq)), key=_remote)
        chosen = list(dict.fromkeys([*able[: MAX_LONGEST // 2], *away, *able]))[:MAX_LONGEST]
        chosen.sort(key=_movable, reverse=True)
        return tuple(LongRequest(seq.request_id, _movable(seq), _remote(seq)) for seq in chosen)

    def _generated_per_s(self) -> float:
        """Of the last GENERATED_S, or since the heartbeat before."""
        made, now = self._generated, self._last_at
        made.append((now, self._state.counters.generation_tokens))
        while len(made) > 2 and made[1][0] <= now - GENERATED_S:
            made.popleft()
        (since, before), (_, until) = made[0], made[-1]
        return (until - before) / (now - since) if now - since >= EARLY_S else 0.0

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


def _movable(seq: Sequence) -> int:
    return seq.placement.counts.movable


def _remote(seq: Sequence) -> int:
    return seq.placement.num_remote
