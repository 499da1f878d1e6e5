"""Headers of tensor-link frames, worker to worker. A header is followed by `body_bytes` of raw tensor bytes.

Tensors are little-endian and contiguous. R: query rows of a plan's entries together; Hq: query heads; D: head dim.
"""

from __future__ import annotations

from typing import Literal

from distkv.wire.messages.common import Compat, Count, InstanceId, Message, Reason, SpanRef, Value, Word


class Hello(Message, frozen=True):
    """First frame of a link, from the end that connects. Answered by `Welcome` or `Denied`."""

    protocol: int  #: protocol version; must be equal
    instance_id: InstanceId  #: instance that connects
    incarnation: int  #: its incarnation
    compat: Compat  #: as in `Join`; must be equal
    expects_id: InstanceId  #: instance that it means to reach
    expects_incarnation: int  #: incarnation of that instance


class Welcome(Message, frozen=True):
    """Answer to `Hello`: the link is open."""

    instance_id: InstanceId  #: instance that accepts
    incarnation: int  #: its incarnation
    slot_bytes: Count  #: bytes of one rBlock of its pool
    num_slots: Count  #: rBlocks of its pool
    #: random name of the pool's memory file, by which a peer knows that it has mapped the right one; empty if it
    #: cannot be mapped
    pool_token: str = ""


class Denied(Message, frozen=True):
    """Answer to `Hello`, or to a frame out of order: the link ends here."""

    field: Word  #: what differs
    expected: Reason  #: what it should have been; not told of `compat`
    got: Reason  #: what it was


OutDtype = Literal["float32", "bfloat16"]
"""Of the `out` of partials; their `lse` is float32 in any case."""


class AttendEntry(Value, frozen=True, array_like=True):
    """Query rows [row, row + num_rows) of the layer's q attend to rBlocks [index, index + num_blocks) of a span."""

    request_id: str  #: the sequence
    span: SpanRef  #: the span, epoch included
    index: Count  #: position in the span of the first rBlock
    num_blocks: Count  #: rBlocks to attend over, all of them full
    first_position: Count  #: position in the sequence of the first key there
    row: Count  #: first query row
    num_rows: Count  #: query rows


class AttendPlan(Message, frozen=True):
    """What the `Attend` frames of one step mean. Body: int64 [num_rows], the position of each query row.

    The plan holds until the next one on the same link.
    """

    step_id: Count  #: the debtor's Step
    num_rows: Count  #: query rows (R)
    entries: tuple[AttendEntry, ...]  #: what the rows attend to
    out_dtype: OutDtype = "float32"  #: in what partials are wanted; who cannot do that answers with float32
    #: number of the first layer's queries and partials in the mailbox of this link, the next layer's is one more; 0 if
    #: they travel as `Attend` and `Partials`
    first_post: Count = 0


class Attend(Message, frozen=True):
    """Queries of one layer: body q [num_rows, Hq, D] in the model's dtype. Answered by `Partials`."""

    step_id: Count  #: must be that of the plan
    layer: Count  #: from 0


class Partials(Message, frozen=True):
    """Partials of one layer, entry by entry: body out [R, Hq, D], then lse float32 [R, Hq] (natural log)."""

    step_id: Count  #: as in `Attend`
    layer: Count  #: as in `Attend`
    #: indices of entries whose span does not exist in that epoch: their rows are empty partials (0, -inf), and their
    #: sequences have lost this creditor
    stale: tuple[Count, ...] = ()
    out_dtype: OutDtype = "float32"  #: of out; bfloat16 only where the plan wants that


class PlanServed(Message, frozen=True):
    """Every layer of a plan with `first_post` was served by the mailbox, and what it read was there until then."""

    step_id: Count  #: that of the plan
    stale: tuple[Count, ...] = ()  #: as in `Partials`, of all layers


class ReadBlocks(Message, frozen=True, omit_defaults=True):
    """Send these slots of the pool, whole or a part of each. Answered by `Blocks`; stands in for a one-sided read."""

    slots: tuple[Count, ...]  #: slots of the owner's pool
    first_byte: Count = 0  #: of every slot, where the part begins
    num_bytes: Count = 0  #: of every slot, how long the part is; 0 stands for whole slots


class Blocks(Message, frozen=True):
    """Body: the slots of `ReadBlocks`, or that part of each, back to back."""

    num_blocks: Count  #: how many


class Attach(Message, frozen=True):
    """The asking end would read by this transport. Answered by `Attached`, or `Denied` if it is not offered.

    Body: what the transport needs to know of the asking end, in its own form; sent once, before all other frames.
    """

    transport: Word  #: its name in `DataEndpoint.transports`


class Attached(Message, frozen=True):
    """Answer to `Attach`. Body: what is needed to read the pool by this transport, in its own form."""

    transport: Word  #: as in `Attach`


class SpanPart(Value, frozen=True, array_like=True):
    """rBlocks [index, index + num_blocks) of a span."""

    span: SpanRef  #: the span, epoch included
    index: Count  #: position in the span of the first rBlock
    num_blocks: Count  #: how many


class SlotsQuery(Message, frozen=True):
    """Do these parts of spans still exist, and where do they lie? Answered by `Slots`.

    Whoever read what lay there asks again afterwards: what exists then was never overwritten before.
    """

    parts: tuple[SpanPart, ...]  #: what is to be read, or was
    with_slots: bool = True  #: whether the slots are wanted too


class Slots(Message, frozen=True):
    """Body: int64, the slots of the parts that exist, one after the other; none unless they were wanted."""

    stale: tuple[Count, ...] = ()  #: indices of parts that do not exist in that epoch


DataMessage = (
    Hello
    | Welcome
    | Denied
    | Attach
    | Attached
    | AttendPlan
    | Attend
    | Partials
    | PlanServed
    | ReadBlocks
    | Blocks
    | SlotsQuery
    | Slots
)
