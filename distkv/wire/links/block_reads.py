"""The answering end of reads that are not one-sided."""

from __future__ import annotations

from distkv.errors import LinkError, MalformedMessage
from distkv.wire.links.base import MAX_BODY_BYTES, TensorLink
from distkv.wire.links.pool_memory import Pool, slots_problem
from distkv.wire.messages.common import clipped
from distkv.wire.messages.data import Blocks, Denied, ReadBlocks


def serve_read(link: TensorLink, request: ReadBlocks, pool: Pool) -> int:
    """Answer one `ReadBlocks` from `pool`; returns the bytes sent.

    A bad request is denied, the link ended, and MalformedMessage raised. Raises LinkError as `send` does.
    """
    slots, size = request.slots, pool.slot_bytes
    if problem := slots_problem(slots, pool.num_slots):
        raise deny(link, "slots", f"from 0 to {pool.num_slots - 1}", problem)
    if len(slots) * size > MAX_BODY_BYTES:
        raise deny(link, "slots", f"at most {MAX_BODY_BYTES // size} at once", str(len(slots)))
    with pool.reading(slots) as views:
        link.send(Blocks(num_blocks=len(slots)), *views)
    return len(slots) * size


def deny(link: TensorLink, field: str, expected: str, got: str) -> MalformedMessage:
    """Tell the peer what is wrong with its frame and end the link; the error is to be raised."""
    try:
        link.send(Denied(field=field, expected=clipped(expected), got=clipped(got)))
    except LinkError:
        pass
    finally:
        link.close()
    return MalformedMessage(f"{field} should be {expected}, got {got}")
