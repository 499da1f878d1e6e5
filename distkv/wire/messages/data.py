"""Headers of tensor-link frames, worker to worker. A header is followed by `body_bytes` of raw tensor bytes.

Tensors are little-endian and contiguous. R: query rows of a plan's entries together; Hq: query heads; D: head dim.
"""

from __future__ import annotations

from distkv.wire.messages.common import Count, InstanceId, Message, SpanRef, Value


class Hello(Message, frozen=True):
    """First frame of a link, from the end that connects. expects: the incarnation it wants to talk to."""

    protocol: int
    instance_id: InstanceId
    incarnation: int
    compat: str
    expects_id: InstanceId
    expects_incarnation: int


class Welcome(Message, frozen=True):
    """Answer to `Hello`: go on. slot_bytes, num_slots describe the accepting end's pool.

    pool_token: the random name of the pool's memory, by which a peer that maps it knows that it is this one; "" if it
    cannot be mapped.
    """

    instance_id: InstanceId
    incarnation: int
    slot_bytes: Count
    num_slots: Count
    pool_token: str = ""


class Denied(Message, frozen=True):
    """Answer to `Hello`, or to a frame out of order: the link ends here."""

    field: str
    expected: str
    got: str


class AttendEntry(Value, frozen=True, array_like=True):
    """Query rows [row, row + num_rows) of the layer's q attend to rBlocks [index, index + num_blocks) of a span.

    first_position: position in its sequence of the first key there; all these keys are full rBlocks.
    """

    request_id: str
    span: SpanRef
    index: Count
    num_blocks: Count
    first_position: Count
    row: Count
    num_rows: Count


class AttendPlan(Message, frozen=True):
    """What the `Attend` frames of one step mean. Body: int64 [num_rows], the position of each query row.

    The plan holds until the next one on the same link.
    """

    step_id: Count
    num_rows: Count
    entries: tuple[AttendEntry, ...]


class Attend(Message, frozen=True):
    """Queries of one layer: body q [num_rows, Hq, D] in the model's dtype. Answered by `Partials`."""

    step_id: Count
    layer: Count


class Partials(Message, frozen=True):
    """Partials of one layer, entry by entry: body out float32 [R, Hq, D], then lse float32 [R, Hq] (natural log).

    stale: indices of entries whose span is gone; their rows are empty partials (0, -inf).
    """

    step_id: Count
    layer: Count
    stale: tuple[int, ...] = ()


class ReadBlocks(Message, frozen=True):
    """Send these slots of the pool, whole. Answered by `Blocks`; stands in for a one-sided read."""

    slots: tuple[int, ...]


class Blocks(Message, frozen=True):
    """Body: the slots of `ReadBlocks`, back to back."""

    num_blocks: Count


DataMessage = Hello | Welcome | Denied | AttendPlan | Attend | Partials | ReadBlocks | Blocks
