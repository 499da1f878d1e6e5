"""Which requests one instance does not take in, and whether they may come again."""

from __future__ import annotations

from distkv.control.commands import Tokenized
from distkv.control.request.pace import Pace
from distkv.control.rmanager.state import RManagerState
from distkv.errors import context_length_exceeded
from distkv.recent_peak import LATELY_S, RecentPeak
from distkv.types import MAX_INT
from distkv.wire.messages.to_client import RequestEnded

MEMORY_BACK_S = 5.0
"""After so long an instance that died may be back, if it is started again at once."""


class Refusals:
    """By what a request is, and by the memory that there is or was lately. pace: at which requests end."""

    def __init__(self, state: RManagerState) -> None:
        self._state = state
        self.pace = Pace()
        self._room = RecentPeak()
        self._began_s: float | None = None

    def at_once(self, request_id: str) -> RequestEnded | None:
        """Why no request is taken in now, whatever it is; None if one may be. It costs nothing."""
        state, settings = self._state, self._state.settings
        num_waiting = state.sequences.num_waiting
        if state.instance_state != "ready":
            reason, retry_after_s = f"instance {settings.instance_id} is {state.instance_state}", 0.0
        elif num_waiting >= settings.max_waiting:
            reason, retry_after_s = f"{num_waiting} requests are waiting already", self.pace.wait_s(num_waiting)
        else:
            return None
        return RequestEnded(
            request_id=request_id,
            kind="failed",
            reason=reason,
            retryable=True,
            retry_after_s=retry_after_s,
            is_draining=state.instance_state == "draining",
        )

    def of(self, event: Tokenized, now: float) -> RequestEnded | None:
        """Why this one is not taken in; None if it is."""
        state, settings = self._state, self._state.settings
        submit, token_ids = event.submit, event.token_ids
        wanted = len(token_ids) + submit.params.max_tokens
        pool_blocks, lately_blocks = state.cluster_blocks(), self.lately_blocks(now)
        reason, most = "", 0
        if submit.request_id in state.sequences:
            reason = f"a request with the id {submit.request_id!r} is running already"
        elif not token_ids:
            reason = "the prompt has no tokens"
        elif settings.max_model_len is not None and wanted > settings.max_model_len:
            most = settings.max_model_len
            reason = context_length_exceeded(most, len(token_ids), submit.params.max_tokens)
        elif self._blocks_for(wanted) > pool_blocks:
            most = pool_blocks * settings.block_tokens
            if self._blocks_for(wanted) <= lately_blocks:
                is_listed = now >= state.members.listed_from
                return _come_again(submit.request_id, wanted, most, is_listed=is_listed)
        else:
            reason = _beyond_vocabulary(event, settings.vocab_size)
            if not reason:
                return None
        return RequestEnded(
            request_id=submit.request_id,
            kind="refused",
            reason=reason,
            needed_tokens=0 if reason and not most else wanted,
            pool_tokens=most,
        )

    def lately_blocks(self, now: float) -> int:
        """The most that one request could have had within LATELY_S, also before this instance began, for those that
        died meanwhile are listed for so long; MAX_INT while peers load that may lend, for nobody knows how much, and
        while no gManager has said who there is, which may take as long, or others may not have joined yet."""
        state = self._state
        members = state.members
        if self._began_s is None:
            self._began_s = now
        seen = max(self._room.look(state.cluster_blocks(), now), state.settings.num_blocks + members.known_blocks)
        is_unknown = now < min(members.listed_from, self._began_s + LATELY_S)
        return MAX_INT if (members.num_loading or is_unknown) and state.shares_memory else seen

    def _blocks_for(self, num_tokens: int) -> int:
        """rBlocks for a request of so many tokens in all; the KV of the last one is never needed."""
        return max(1, -(-(num_tokens - 1) // self._state.settings.block_tokens))


def _come_again(request_id: str, wanted: int, most: int, *, is_listed: bool) -> RequestEnded:
    others = "others are starting, or gone and may come back" if is_listed else "others may not have joined yet"
    reason = (
        f"the request needs KV memory for {wanted} tokens (prompt + max_tokens), all live instances together can "
        f"give {most} now; {others}"
    )
    return RequestEnded(
        request_id=request_id,
        kind="failed",
        reason=reason,
        retryable=True,
        retry_after_s=MEMORY_BACK_S,
        needed_tokens=wanted,
        pool_tokens=most,
    )


def _beyond_vocabulary(event: Tokenized, vocab_size: int) -> str:
    """What is wrong with the ids that would change or leave out logits; empty if nothing is."""
    params = event.submit.params
    for name, ids in (
        ("logit_bias", params.logit_bias),
        ("allowed_token_ids", params.allowed_token_ids or ()),
        ("bad_words", [one for word in event.bad_words for one in word]),
    ):
        if max(ids, default=0) >= vocab_size:
            wrong = next(one for one in ids if one >= vocab_size)
            return f"{name}: token ids must be in [0, {vocab_size}), it has {wrong}"
    return ""
