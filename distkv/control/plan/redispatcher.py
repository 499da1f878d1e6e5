"""Requests that wait here while another instance has memory for them: their clients are told to send them there.

Only what has not begun moves: it holds nothing here, so nothing is copied and nothing computed twice. The gManager says
with a heartbeat's answer how much memory there is elsewhere, and in answer to a query which request goes where. An
early heartbeat follows who has come and must wait (`rmanager/reports/heartbeats.py`). One that is to borrow goes at
once if all of it fits elsewhere: memory that is read over a link costs every step.
"""

from __future__ import annotations

from itertools import chain, islice

from distkv.control.commands import TellGManager
from distkv.control.request.lifecycle import RequestLifecycle
from distkv.control.request.sequence import Sequence
from distkv.control.rmanager.state import RManagerState
from distkv.wire.messages.to_gmanager import MAX_REDISPATCHED, RedispatchQuery, WaitingRequest
from distkv.wire.messages.to_rmanager import Creditors, Redispatch

MOST_LOOKED_AT = 4 * MAX_REDISPATCHED


class Redispatcher:
    """Hands requests back that wait at one instance."""

    def __init__(self, state: RManagerState, requests: RequestLifecycle) -> None:
        self._state = state
        self._requests = requests

    def on_room(self, room_tokens: int) -> None:
        """Another instance has memory for so many tokens: ask which of the oldest requests that wait should go, and of
        the oldest that are no larger, for there may be many larger ones before them."""
        if not room_tokens:
            return
        queue, room_blocks = self._state.sequences.queue, room_tokens // self._state.settings.block_tokens
        fitting = islice(queue.fitting(room_blocks), MOST_LOOKED_AT)
        waiting = dict.fromkeys(chain(islice(queue.waiting, MOST_LOOKED_AT), fitting))
        all_of_it = ((seq, self._state.movable_tokens(seq)) for seq in waiting)
        found = (
            WaitingRequest(seq.request_id, num_tokens, len(seq.request.tokens))
            for seq, num_tokens in all_of_it
            if 0 < num_tokens <= room_tokens
        )
        if requests := tuple(islice(found, MAX_REDISPATCHED)):
            instance_id = self._state.settings.instance_id
            self._state.emit(TellGManager(RedispatchQuery(instance_id=instance_id, requests=requests)))

    def on_redispatch(self, message: Redispatch, now: float) -> None:
        """Hand back those that still wait."""
        for found in message.requests:
            self._hand_back(self._state.sequences.get(found.req_id), found.inst_id, now)

    def on_creditors(self, message: Creditors, now: float) -> None:
        """A request that is to borrow may be told to go instead; if it cannot any more, nobody was recommended."""
        borrow = self._state.borrower.active.get(message.borrow_id)
        if borrow is not None and borrow.querying and message.go_to:
            self._hand_back(borrow.seq, message.go_to, now)

    def _hand_back(self, seq: Sequence | None, instance_id: str, now: float) -> None:
        if seq is not None and instance_id in self._state.members and self._state.movable_tokens(seq):
            self._requests.redispatch(seq, instance_id, now)
