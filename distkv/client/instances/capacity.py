"""How long a request may be, by what the members of a cluster say of themselves."""

from __future__ import annotations

from collections.abc import Collection

from distkv.wire.messages.common import Member


def takes(member: Member, num_tokens: int) -> bool:
    """Whether an instance lets a request, prompt and output, be so long, whatever memory there is."""
    return not member.max_model_len or num_tokens <= member.max_model_len


def longest_requests(members: Collection[Member]) -> dict[str, int]:
    """By name: prompt and output, in tokens, of the longest request that each takes, with all that the others lend it.
    The KV of the last token is not needed."""
    lendable = sum(one.lendable_blocks * one.block_tokens for one in members)
    longest = {}
    for one in members:
        held = (one.total_blocks - one.lendable_blocks) * one.block_tokens + lendable + 1
        longest[one.instance_id] = min(held, one.max_model_len or held)
    return longest


def longest_request(members: Collection[Member]) -> int:
    """The longest of them, which goes to an instance that takes it; 0 if there are no members."""
    return max(longest_requests(members).values(), default=0)


def are_live(members: Collection[Member]) -> list[Member]:
    """Those that are not known to be gone."""
    return [one for one in members if one.state in ("ready", "unreachable")]
