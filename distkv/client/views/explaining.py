"""Why a request's rBlocks lie where they lie, in sentences: who serves it, what it holds, what happened, what next."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import partial

import msgspec

from distkv.client.instances.directory import ANSWER_S, Directory
from distkv.client.instances.events import ConnectionLost
from distkv.client.owned_tasks import gather_limited
from distkv.client.views.cluster_status import MAX_AT_ONCE
from distkv.errors import RequestUnknown
from distkv.wire.messages.common import Member
from distkv.wire.messages.to_client import Dispatched, Explained, HistoryEntry
from distkv.wire.messages.to_gmanager import ExplainQuery
from distkv.wording import counted

MAX_EARLIER = 4
SENT_AGAIN = re.compile("~[0-9a-f]{16}$")
"""What a client adds to the id of a request that it sends again: to instances it is a part of the same request."""
COUNTED = ("reclaimed", "left", "came_home")
"""Of which it is not said how often they happened by then: the sentence has all that counts."""
HTTP_PREFIXES = ("chatcmpl-", "cmpl-")
"""Of the ids in HTTP responses; what follows is what the instances' requests are named after."""
PURPOSES = {
    "place": "so that all of it has a place",
    "relieve": "to make room for what runs where it is served",
    "reclaim": "because another creditor wanted its memory back",
    "planned": "because a gManager planned it",
}


def without_http_prefix(name: str) -> str:
    """What the instances' requests are named after, of the id in an HTTP response or of the beginning of one."""
    found = next((prefix for prefix in HTTP_PREFIXES if name.startswith(prefix)), "")
    return name.removeprefix(found)


class Explanation(msgspec.Struct, frozen=True):
    """What an instance knows of a request, and what a gManager does; None where none answered. earlier: of instances
    that had the request before."""

    explained: Explained
    dispatched: Dispatched | None = None
    earlier: tuple[Explained, ...] = ()

    def sentences(self) -> list[str]:
        """All of it in words."""
        one = self.explained
        lines = [_dispatch(one, self.dispatched)]
        for former in self.earlier:
            lines += [_served(former), *(_happened(former.instance_id, entry) for entry in former.history[-1:])]
        lines.append(_served(one))
        if one.state not in ("ended", "unknown"):
            lines.append(_placed(one))
        if one.left_out:
            lines.append(f"Of it, {counted(one.left_out, 'earlier event')} had to be forgotten.")
        lines += [_happened(one.instance_id, entry) for entry in one.history]
        if one.state not in ("ended", "unknown"):
            lines.append(_next(one))
        if one.others:
            lines.append(f"Made of the same request: {', '.join(one.others)}.")
        return lines


async def explain(directory: Directory, members: Sequence[Member], request_id: str) -> Explanation:
    """Ask the gManager, and the instance that it names, or else all. Raises RequestUnknown."""
    name = SENT_AGAIN.sub("", without_http_prefix(request_id))
    query = ExplainQuery(request_id=name)
    live = [member for member in members if member.state != "dead"]
    dispatched = await _dispatched(directory, live, query)
    likely = {dispatched.serving_id, dispatched.instance_id} if dispatched is not None else set()
    first = [member for member in live if member.instance_id in likely]
    rest = [member for member in live if member.instance_id not in likely]
    known: list[Explained] = []
    num_silent = 0
    for group in (first, rest):
        answers = await gather_limited([partial(_explained, directory, one, query) for one in group], MAX_AT_ONCE)
        num_silent += answers.count(None)
        known += [one for one in answers if one is not None and one.state != "unknown"]
        known.sort(key=lambda one: (one.state == "ended", one.came_ago_s))
        if known and known[0].state != "ended":
            break
    if known:
        return Explanation(known[0], dispatched, tuple(reversed(known[1 : 1 + MAX_EARLIER])))
    raise RequestUnknown(request_id, len(live), num_silent)


async def _dispatched(directory: Directory, members: Sequence[Member], query: ExplainQuery) -> Dispatched | None:
    """What the gManager says; None where the client's address is an instance's, or nobody answers."""
    if any(member.address == directory.address for member in members) or not directory.bootstrap_answers:
        return None
    try:
        return await directory.connection(directory.address).dispatched(query, ANSWER_S)
    except ConnectionLost:
        return None


async def _explained(directory: Directory, member: Member, query: ExplainQuery) -> Explained | None:
    try:
        return await directory.connection(member.address).explained(query, ANSWER_S)
    except ConnectionLost:
        return None


# --- sentences


def _dispatch(one: Explained, sent: Dispatched | None) -> str:
    if sent is None or not sent.instance_id:
        return "No gManager remembers where it was sent: a client without one chooses an instance by itself."
    needs = f"; it was estimated to need {sent.num_tokens:,} tokens" if sent.num_tokens else ""
    left_out = f", {counted(sent.excluded, 'instance')} left out" if sent.excluded else ""
    waits = f", {sent.waiting} of them waiting" if sent.waiting else ", none waiting" if sent.load else ""
    had = f"{counted(sent.load, 'request')}{waits}"
    return (
        f"{_ago(sent.ago_s)} the gManager sent it to {sent.instance_id}, which had {had} and room"
        f" for {sent.free_tokens:,} tokens ({counted(sent.num_ready, 'instance')} ready{left_out}){needs}."
    )


def _served(one: Explained) -> str:
    if one.state == "ended":
        return f"Request {one.request_id} came {_ago(one.came_ago_s)} and was served by {one.instance_id}."
    words = {"running": "runs", "acquiring": "borrows memory to begin or go on", "waiting": "waits"}
    does = words.get(one.state, f"is {one.state}")
    return (
        f"Request {one.request_id} is served by {one.instance_id} and {does}: it came "
        f"{_ago(one.came_ago_s)} with {one.prompt_tokens:,} tokens, and has generated "
        f"{one.num_tokens - one.prompt_tokens:,} of at most {one.max_tokens:,}."
    )


def _placed(one: Explained) -> str:
    remote = sum(debt.num_blocks for debt in one.debts)
    total = one.local_blocks + remote
    if not total:
        return "It holds no memory."
    parts = [f"{one.local_blocks:,} at {one.instance_id}"]
    for debt in one.debts:
        more = [f"{debt.coming_blocks} on their way"] if debt.coming_blocks else []
        more += [f"{debt.spare_blocks} kept for its growth"] if debt.spare_blocks else []
        parts.append(f"{debt.num_blocks:,} at {debt.instance_id}" + (f" ({', '.join(more)})" if more else ""))
    return (
        f"It has {counted(total, 'rBlock')} of {one.block_tokens} tokens: {', '.join(parts)}; "
        f"{remote / total:.0%} of it is remote."
    )


def _happened(here: str, entry: HistoryEntry) -> str:
    blocks, peer, why = counted(entry.num_blocks, "rBlock"), entry.instance_id, entry.why
    match entry.happened:
        case "waits":
            said = "others lent less than it lacked, so that what they lent went back and it waits"
        case "begins":
            said = f"it had a place for its {blocks}"
        case "borrowed":
            said = f"it borrowed {blocks} from {peer}"
            if why in PURPOSES:
                said, why = f"{said} {PURPOSES[why]}", ""
        case "left":
            said = f"{blocks} went to {peer}{_moves(entry)}"
        case "came_home":
            said = f"{blocks} came home from {peer}{_moves(entry)}"
        case "reclaimed":
            said = f"{peer} wanted {blocks} back"
        case "lost":
            said = f"it lost {blocks} at {peer}, to be computed again"
        case "preempted":
            said = f"it was preempted with {blocks}, to be computed again"
        case "not_moved":
            said = f"{peer} could not take rBlocks over"
        case "planned":
            said = f"a gManager planned to move {blocks} {_goes(peer, here)}"
        case "dropped":
            said = f"a plan of a gManager to move {blocks} {_goes(peer, here)} was dropped"
        case "ended":
            said = "it ended"
        case other:
            said = f"{other} ({blocks}{f', {peer}' if peer else ''})"
    times = f" ({entry.times:,} times by then)" if entry.times > 1 and entry.happened not in COUNTED else ""
    return f"{_ago(entry.ago_s)} {said}{f': {why}' if why else ''}{times}."


def _moves(entry: HistoryEntry) -> str:
    return f", in {entry.times:,} moves" if entry.times > 1 else ""


def _goes(peer: str, here: str) -> str:
    return "home" if peer == here else f"to {peer}"


def _next(one: Explained) -> str:
    peers = f"{counted(one.num_creditors, 'peer')} may be asked for memory"
    grows = f"it is expected to grow by {one.growth_blocks:,} more"
    if one.state != "running":
        before = f"{counted(one.num_before, 'request')} came before it, waiting too; " if one.num_before else ""
        soon = f", next in {one.retry_in_s:.2g} s" if one.retry_in_s else ""
        if one.full_batch and one.room_blocks >= one.lacks_blocks + one.growth_blocks:
            return (
                f"It waits for a place: all {one.full_batch:,} of the batch (--max-num-seqs) are taken; "
                f"{before}there is memory for it at {one.instance_id}."
            )
        return (
            f"To go on it lacks {counted(one.lacks_blocks, 'rBlock')}, and {grows}; there is room for "
            f"{one.room_blocks:,} at {one.instance_id}; {before}{peers}{soon}."
        )
    last = one.num_tokens % max(1, one.block_tokens)
    left = one.block_tokens - last if last else 0
    enough = one.room_blocks >= one.growth_blocks
    then = "" if enough else f"; what does not fit moves to creditors, the oldest rBlocks first, and {peers}"
    return (
        f"It needs its next rBlock in {counted(left, 'token')}, and {grows}; there is room for {one.room_blocks:,} at "
        f"{one.instance_id}{then}."
    )


def _ago(seconds: float) -> str:
    return f"{seconds:.1f} s ago" if seconds < 100 else f"{seconds / 60:.0f} minutes ago"
