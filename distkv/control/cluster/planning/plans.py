"""Account of what was planned: so that nothing ping-pongs, and a plan that did not pay is not made again at once.

A move takes a while until heartbeats tell of it, so its request is left alone meanwhile, and longer before it goes the
other way. What heartbeats have shown is judged some time later: what the instances have generated since then is
compared with what they generated before, for as long, of all moves that were planned for a debtor at once. A debtor
whose moves did not pay is left alone for a while that doubles; such as did end that. What was dropped, by the word of
the debtor or because nothing is ever seen of it, says nothing of what a move brings: it is told and forgotten, and may
be planned again at once, unless another move of the same request was planned together with it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import NamedTuple

from distkv import events
from distkv.control.cluster.ledger import Ledger
from distkv.control.cluster.pauses import Pauses
from distkv.control.cluster.policy.interface import Move, Uneven
from distkv.wire.messages.common import PlanEpoch

COOL_S = 2.0
"""A request is moved once in this time: plans are made from heartbeats, and must be seen in them first. One that was
dropped may be planned again before, once in this time."""
UNSEEN_HEARTBEATS = 6
"""A move that so many heartbeats of its debtor have not shown was dropped: from the fourth on it would be stale there,
and what was begun just before is lent by the next ones."""
UNDO_S = 30.0
"""What left does not come home sooner, and what came home does not leave sooner."""
JUDGE_S = 5.0
"""So much later it is seen what a move brought: heartbeats tell what was generated in that time."""
FIRST_PAUSE_S, LONGEST_PAUSE_S = 5.0, 320.0
"""How long a debtor whose moves did not pay is left alone."""
LEAST_LOSS = 0.02
"""Of what both generated before: a smaller loss is none, for what is measured varies."""
MOST_KEPT = 4096
"""Requests, debtors and moves that are remembered; who plans more forgets the oldest."""
MOST_UNSEEN = 1024
"""Of moves that were not seen yet: so many are looked for in each period, a few milliseconds at most."""


class Placed(NamedTuple):
    """What heartbeats say of a request: rBlocks that creditors hold for it, those that are to lie at creditors by its
    debtor's word, and whether the debtor serves it. None is not known."""

    lent: int
    remote: int | None
    is_served: bool


@dataclass(frozen=True, slots=True)
class Planned:
    """A move that was planned `at`, when its debtor, of this incarnation, had sent the heartbeat `seq`.

    before: tokens that each of both instances generated each second until then. placed: its request then.
    """

    move: Move
    epoch: PlanEpoch
    at: float
    incarnation: int
    seq: int
    before: dict[str, float]
    placed: Placed


class Plans:
    """What one gManager planned lately: the policy's `RecentMoves`. ledger: what heartbeats say.

    went_to, came_from: where the plans before ended, outward and homeward.
    """

    def __init__(self, incarnation: int, ledger: Ledger) -> None:
        self._incarnation = incarnation
        self._ledger = ledger
        self._counter = 0
        self._now = 0.0
        self._planned: dict[str, float] = {}
        self._dropped: dict[str, float] = {}
        self._left: dict[str, float] = {}
        self._came: dict[str, float] = {}
        self._unseen: list[Planned] = []
        self._open: set[str] = set()  # requests of these
        self._seen: list[Planned] = []
        self._pauses: Pauses[str] = Pauses(FIRST_PAUSE_S, LONGEST_PAUSE_S, MOST_KEPT)
        self.went_to: dict[bool, tuple[int, str] | None] = {True: None, False: None}
        self.came_from = ""
        self.evened: Uneven | None = None

    # --- what the policy asks

    def may_leave(self, request_id: str) -> bool:
        """Whether blocks of a request may be planned to leave: none was moved just now, or came home lately."""
        return self._is_quiet(request_id) and self._is_past(self._came, request_id, UNDO_S)

    def may_come_home(self, request_id: str) -> bool:
        """Whether blocks of it may be planned to come home."""
        return self._is_quiet(request_id) and self._is_past(self._left, request_id, UNDO_S)

    def may_plan_for(self, debtor_id: str) -> bool:
        """Whether what was planned for this debtor last did not fail to pay."""
        return self._pauses.is_over(debtor_id, self._now)

    # --- what happens

    def begin(self, now: float) -> list[events.MoveJudged | events.MoveDropped]:
        """A plan is to be made; says what became of former ones. Looks at those that are not judged yet."""
        self._now = now
        unseen, dropped = [], []
        for planned in self._unseen:
            why = self._why_dropped(planned)
            if why:
                dropped.append((planned, why))
            elif self._has_moved(planned):
                self._seen.append(planned)
                del self._seen[:-MOST_KEPT]
                _note(self._came if planned.move.is_homeward else self._left, planned.move.request_id, planned.at)
            else:
                unseen.append(planned)
        self._unseen, self._open = unseen, {planned.move.request_id for planned in unseen}
        due = [planned for planned in self._seen if planned.at + JUDGE_S <= now]
        self._seen = [planned for planned in self._seen if planned.at + JUDGE_S > now]
        together: dict[tuple[str, float], list[Planned]] = {}
        for planned in due:
            if not planned.move.is_homeward:
                together.setdefault((planned.move.debtor_id, planned.at), []).append(planned)
        for (debtor_id, _), moves in together.items():
            gain, before = self._gain(moves)
            if gain >= -LEAST_LOSS * before:
                self._pauses.succeeded(debtor_id)
            else:
                self._pauses.failed(debtor_id, self._now)
        return [self._drop(*one) for one in dropped] + [self._judged(planned) for planned in due]

    def put(self, move: Move) -> PlanEpoch:
        """A move was planned, for a debtor that was heard."""
        entry = self._ledger.entries[move.debtor_id]
        assert entry.heartbeat is not None
        self._counter += 1
        epoch = PlanEpoch(self._incarnation, self._counter)
        _note(self._planned, move.request_id, self._now)
        incarnation, seq = entry.member.incarnation, entry.heartbeat.seq
        before, placed = self._generated({move.debtor_id, move.creditor_id}), self._placed(move)
        self._unseen.append(Planned(move, epoch, self._now, incarnation, seq, before, placed))
        self._open.add(move.request_id)
        del self._unseen[:-MOST_UNSEEN]
        return epoch

    def _why_dropped(self, planned: Planned) -> str:
        """Why a move that was not seen yet never will be; empty as long as it may be, and when it just was."""
        move, entry = planned.move, self._ledger.entries.get(planned.move.debtor_id)
        if entry is None or entry.member.incarnation != planned.incarnation or entry.heartbeat is None:
            return f"{move.debtor_id} is gone"
        beat = entry.heartbeat
        dropped = next((one for one in beat.dropped_moves if one.epoch == planned.epoch), None)
        if dropped is not None:
            return dropped.why or f"{move.debtor_id} dropped it"
        if planned.placed.is_served and not self._placed(move).is_served:
            return f"its request does not run at {move.debtor_id} any more"
        if beat.seq - planned.seq >= UNSEEN_HEARTBEATS and not self._has_moved(planned):
            return f"{UNSEEN_HEARTBEATS} heartbeats of {move.debtor_id} show nothing of it"
        return ""

    def _has_moved(self, planned: Planned) -> bool:
        """Whether more of the request lies at the creditor than when it was planned, or less at all, if homeward."""
        before, now = planned.placed, self._placed(planned.move)
        known = before.remote is not None and now.remote is not None
        more = now.lent - before.lent, (now.remote or 0) - (before.remote or 0) if known else 0
        return min(more) < 0 if planned.move.is_homeward else max(more) > 0

    def _placed(self, move: Move) -> Placed:
        entries, request_id = self._ledger.entries, move.request_id
        debtor = entries.get(move.debtor_id)
        creditors = self._ledger.debt_graph.creditors_of(move.debtor_id) if move.is_homeward else (move.creditor_id,)
        found = (entries[name].placement.get((request_id, False)) for name in creditors if name in entries)
        lent = sum(one.num_blocks for one in found if one is not None)
        if debtor is None or debtor.heartbeat is None:
            return Placed(lent, None, False)
        named = (one.remote_blocks for one in debtor.heartbeat.longest if one.request_id == request_id)
        return Placed(lent, next(named, None), (request_id, True) in debtor.placement)

    def _drop(self, planned: Planned, why: str) -> events.MoveDropped:
        move = planned.move
        others = (one for one in chain(self._unseen, self._seen) if one.move.request_id == move.request_id)
        if self._is_past(self._dropped, move.request_id, COOL_S) and all(one.at != planned.at for one in others):
            self._planned.pop(move.request_id, None)
        _note(self._dropped, move.request_id, self._now)
        return events.MoveDropped(
            request_id=move.request_id,
            debtor=move.debtor_id,
            destination=move.creditor_id,
            blocks=move.num_blocks,
            why=why,
        )

    def _judged(self, planned: Planned) -> events.MoveJudged:
        move = planned.move
        gain, _ = self._gain([planned])
        return events.MoveJudged(
            request_id=move.request_id,
            debtor=move.debtor_id,
            destination=move.creditor_id,
            blocks=move.num_blocks,
            predicted_tokens_per_s=move.gain_tokens_per_s,
            achieved_tokens_per_s=gain,
        )

    def _generated(self, names: Iterable[str]) -> dict[str, float]:
        """Of those of them that are there."""
        views = ((name, self._ledger.balance.get(name)) for name in names)
        return {name: view.generated_per_s for name, view in views if view is not None and view.state == "ready"}

    def _gain(self, moves: Sequence[Planned]) -> tuple[float, float]:
        """How many more tokens their instances generate each second, and how many they did before; who is gone says
        nothing of a move."""
        before = {name: rate for planned in moves for name, rate in planned.before.items()}
        now = self._generated(before)
        return sum(rate - before[name] for name, rate in now.items()), sum(before[name] for name in now)

    def _is_quiet(self, request_id: str) -> bool:
        """Whether what was planned for it last was seen, or dropped, and that was not just now."""
        return request_id not in self._open and self._is_past(self._planned, request_id, COOL_S)

    def _is_past(self, moved: dict[str, float], request_id: str, seconds: float) -> bool:
        at = moved.get(request_id)
        return at is None or self._now >= at + seconds


def _note(moved: dict[str, float], request_id: str, at: float) -> None:
    """The newest last, the oldest of too many forgotten."""
    moved.pop(request_id, None)
    moved[request_id] = at
    if len(moved) > MOST_KEPT:
        del moved[next(iter(moved))]
