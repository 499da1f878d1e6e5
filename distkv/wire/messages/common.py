"""What every message is made of.

A message is a frozen struct, encoded as a MessagePack map whose "type" key names it. Fields added later get defaults;
unknown fields are ignored, so old and new processes understand each other. All tokens, blocks and bytes are counts;
times end in `_s` and are durations, because no two processes share a clock.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

PROTOCOL_VERSION = 2
MAX_REASON = 4096
MAX_COUNT, MAX_SUM, MAX_AMOUNT = 2**63 - 1, 2**48 - 1, 2**31 - 1

InstanceId = Annotated[str, Meta(min_length=1, max_length=128)]
RequestId = Annotated[str, Meta(min_length=1, max_length=256)]
SpanId = Annotated[str, Meta(min_length=1, max_length=256)]
BorrowId = Annotated[str, Meta(max_length=256)]
Address = Annotated[str, Meta(max_length=256)]
HostKey = Annotated[str, Meta(max_length=256)]
Compat = Annotated[str, Meta(max_length=256)]
Word = Annotated[str, Meta(max_length=32)]
Reason = Annotated[str, Meta(max_length=MAX_REASON)]
Count = Annotated[int, Meta(ge=0, le=MAX_COUNT)]
Checksum = Annotated[int, Meta(ge=0)]
Amount = Annotated[int, Meta(ge=0, le=MAX_AMOUNT)]
"""Of rBlocks of one pool, tokens of one rBlock, or requests: the product of two is a Count."""
Sum = Annotated[int, Meta(ge=0, le=MAX_SUM)]
"""Of tokens, or of what many requests want. What a whole cluster says of these and of Amounts adds up to a Count."""
Seconds = Annotated[float, Meta(ge=0, le=1e9)]
Share = Annotated[float, Meta(ge=0, le=1)]
_PACKED_IDS = Meta(extra={"packed": "token ids"})
PackedIds = Annotated[bytes, _PACKED_IDS]
"""Many token ids, as `distkv.token_ids` packs them: decoding makes no object of each."""
PackedIdsInPlace = Annotated[memoryview, _PACKED_IDS]
"""The same, where they are the most of a message: not even copied out of it."""
PackedChecksums = Annotated[bytes, Meta(extra={"packed": "checksums"})]
"""Checksums (XXH3, 64 bit) of many rBlocks, as `distkv.checksums` packs them."""


def clipped(reason: str) -> str:
    """The reason, cut to what a message of ours may carry or a reader of ours will keep."""
    return reason if len(reason) <= MAX_REASON else reason[: MAX_REASON - 1] + "…"


class Message(msgspec.Struct, frozen=True, kw_only=True, tag=True, gc=False):
    """Base of all messages."""


class Value(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Base of the parts of messages: no type tag."""


class Epoch(msgspec.Struct, frozen=True, array_like=True, order=True, gc=False):
    """Which grant of a span is meant. Two epochs are compared for equality only."""

    incarnation: int  #: the creditor's incarnation when it granted the span
    counter: int  #: counts the creditor's grants within that incarnation, from 1


ANY_EPOCH = Epoch(0, 0)
"""In a `Release`: whatever epoch the span has. Its debtor sends it when it never heard which."""


class SpanRef(Value, frozen=True):
    """One lent span in one epoch."""

    span_id: SpanId  #: chosen by the debtor; unique among its spans
    epoch: Epoch  #: given by the creditor in `Granted`

    def covers(self, other: SpanRef) -> bool:
        """Whether this names `other`: the same span in the same, or in any, epoch."""
        return self.span_id == other.span_id and self.epoch in (other.epoch, ANY_EPOCH)


class PlanEpoch(Value, frozen=True, array_like=True, order=True):
    """Which plan is meant. Those of one gManager are in order."""

    incarnation: Count  #: of the gManager
    counter: Count  #: counts its plans, from 1


TransportName = Annotated[str, Meta(min_length=1, max_length=32)]
TransportMetadata = Annotated[
    dict[Annotated[str, Meta(max_length=32)], Annotated[str, Meta(max_length=256)] | int], Meta(max_length=16)
]


class DataEndpoint(Value, frozen=True):
    """How to reach the tensors of a worker."""

    address: Address  #: `host:port` of the tensor link listener
    #: boot id, process namespace and user; equal on two workers that can map each other's memory
    host_key: HostKey = ""
    slot_bytes: Count = 0  #: bytes of one rBlock, all layers
    num_slots: Count = 0  #: rBlocks in the pool
    #: by the name of a transport, what a peer needs to know for that one; see "Transports"
    transports: Annotated[dict[TransportName, TransportMetadata], Meta(max_length=16)] = msgspec.field(
        default_factory=dict
    )


class Member(Value, frozen=True):
    """One instance, as the cluster knows it."""

    instance_id: InstanceId  #: name, unique in the cluster
    incarnation: int  #: grows with every restart of the instance (wall-clock nanoseconds at its start)
    address: Address  #: `tcp://host:port` of its rManager
    state: Word = "starting"  #: `starting`, `ready`, `draining`, `unreachable` or `dead`
    pid: int = 0  #: process of the rManager
    worker_pid: int = 0  #: process of the engine worker
    block_tokens: Amount = 0  #: tokens per rBlock (P)
    total_blocks: Amount = 0  #: rBlocks in its pool
    lendable_blocks: Amount = 0  #: most rBlocks it would lend when idle
    free_blocks: Amount = 0  #: rBlocks free when this entry last changed
    data: DataEndpoint | None = None  #: its tensor endpoint; None until the worker is ready
    heartbeat_s: Seconds = 0.0  #: its period; a gManager judges its silence by it. 0: as the gManager's own setting
    #: tokens of the longest request it takes, prompt and output; 0 is no limit but memory
    max_model_len: Amount = 0
    left: bool = False  #: it is `dead` because it ended in good order; only a gManager says so
    #: hash of its tokenizer's tokens, by which a gateway knows its model; empty without one, and from former versions
    vocabulary: Word = ""

    @property
    def is_loading(self) -> bool:
        """Whether it does not know yet what memory it will have."""
        return self.state == "starting" and not self.total_blocks


class Run(Value, frozen=True, array_like=True):
    """Neighbouring rBlocks of a sequence that are neighbours in the pool too."""

    first_block: Count  #: first logical rBlock of the sequence
    first_slot: Count  #: slot it lies in
    num_blocks: Count  #: how many follow, both ways counted by one
