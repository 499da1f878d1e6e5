"""How long a request may be, by what the members of a cluster say of themselves."""

from __future__ import annotations

from collections.abc import Sequence

from distkv.wire.messages.common import Member


def capacities(members: Sequence[Member]) -> list[int]:
    """Of each: tokens of KV that it can have for a request of its own, with all that the others lend."""
    lendable = sum(one.lendable_blocks * one.block_tokens for one in members)
    return [(one.total_blocks - one.lendable_blocks) * one.block_tokens + lendable for one in members]


def longest_request(members: Sequence[Member]) -> int:
    """Prompt and output, in tokens, of the longest request that each of the live members takes; 0 if none is live. The
    KV of its last token is not needed."""
    live = [one for one in members if one.state in ("ready", "unreachable")]
    if not live:
        return 0
    return min([1 + min(capacities(live)), *(one.max_model_len for one in live if one.max_model_len)])
