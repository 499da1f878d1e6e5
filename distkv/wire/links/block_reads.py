"""The answering end of reads that are not one-sided."""

from __future__ import annotations

from distkv.errors import LinkError, MalformedMessage
from distkv.wire.links.base import MAX_BODY_BYTES, TensorLink
from distkv.wire.links.memory.pool_memory import Pool, part_problem, slots_problem
from distkv.wire.links.memory.slot_views import SlotViews
from distkv.wire.messages.common import clipped
from distkv.wire.messages.data import Blocks, Denied, ReadBlocks

MAX_PARTS = 65_536
"""Of blocks in one frame: each costs the answering process some hundred bytes, however small it is."""


def serve_read(link: TensorLink, request: ReadBlocks, pool: Pool) -> int:
    """Answer one `ReadBlocks` from `pool`; returns the bytes sent.

    A bad request is denied, the link ended, and MalformedMessage raised. Raises LinkError as `send` does.
    """
    slots, size = request.slots, request.num_bytes or pool.slot_bytes
    part = request.first_byte, size
    if problem := slots_problem(slots, pool.num_slots):
        raise deny(link, "slots", f"from 0 to {pool.num_slots - 1}", problem)
    if problem := part_problem(part, pool.slot_bytes):
        raise deny(link, "part", f"within {pool.slot_bytes} bytes", problem)
    if len(slots) > MAX_PARTS and size < pool.slot_bytes:
        raise deny(link, "slots", f"parts of at most {MAX_PARTS} at once", str(len(slots)))
    if len(slots) * size > MAX_BODY_BYTES:
        raise deny(link, "slots", f"at most {MAX_BODY_BYTES // size} at once", str(len(slots)))
    with pool.reading(slots, None if size == pool.slot_bytes else part) as views:
        link.send(Blocks(num_blocks=len(slots)), *([views] if isinstance(views, SlotViews) else views))
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
