"""What an engine worker reads from its rManager, on one ordered channel.

Steps are executed in order and answered in order. `Checksum` and `Pull` run beside them, in order too. `Grant` and
`Revoke` take effect at once; `Revoked` is sent when the last reader of the span is done.
"""

from __future__ import annotations

import msgspec

from distkv.wire.messages.common import Count, InstanceId, Member, Message, RequestId, Run, SpanRef, Value


class Sampling(Value, frozen=True, omit_defaults=True):
    """How to choose the next token; the noise is a pure function of (seed, position). See SamplingParams.

    prompt_tokens: tokens of the prompt; those behind it are output. logprobs: how many of the likeliest tokens to
    tell the logprobs of, besides the chosen one's; None for none at all.
    """

    temperature: float
    top_k: int
    top_p: float
    seed: int
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: dict[int, float] = msgspec.field(default_factory=dict)
    prompt_tokens: Count = 0
    logprobs: Count | None = None


class PromptLogprobs(Value, frozen=True):
    """The logprobs of prompt tokens `token_ids`, at positions `first` and on, are wanted, each with those of the `top`
    likeliest tokens there. The row before a position predicts it, so `first` is above the step's `start`."""

    first: Count
    token_ids: tuple[int, ...]
    top: Count


class RemoteSpan(Value, frozen=True):
    """Logical rBlocks [first_block, first_block + num_blocks) of a sequence lie in a span of a creditor,
    at positions [index, index + num_blocks) of it."""

    instance_id: InstanceId
    span: SpanRef
    index: Count
    first_block: Count
    num_blocks: Count


class SeqStep(Value, frozen=True, omit_defaults=True):
    """Compute tokens [start, end) of one sequence, attending to everything before each of them.

    tokens: their ids; one fewer than end - start when the last is the token the worker sampled for this sequence just
    before. version: placement version, grows whenever a block of the sequence changes place. attempt: grows whenever
    steps of the sequence were lost; a lost attempt stays void, a new one starts afresh. local: where the sequence's own
    rBlocks that hold positions < end lie, ascending, those written by this step included. remote: its borrowed ones,
    ascending. sample: given when position `end` is wanted. history: the worker is to remember the ids by position,
    for penalties; the same in all steps of a request. prompt_logprobs: given when some are wanted of these rows.
    """

    request_id: RequestId
    version: Count
    attempt: Count
    start: Count
    end: Count
    tokens: tuple[int, ...]
    local: tuple[Run, ...]
    remote: tuple[RemoteSpan, ...] = ()
    sample: Sampling | None = None
    history: bool = False
    prompt_logprobs: PromptLogprobs | None = None


class Step(Message, frozen=True):
    """One forward pass over a batch; answered by `StepResult`."""

    step_id: Count
    seqs: tuple[SeqStep, ...]


class Forget(Message, frozen=True):
    """Drop what is remembered of these requests; no later Step names them in the same attempt."""

    request_ids: tuple[RequestId, ...]


class Checksum(Message, frozen=True):
    """Checksum these slots of the own pool; answered by `Checksummed`."""

    checksum_id: Count
    slots: tuple[int, ...]


class Grant(Message, frozen=True):
    """A span exists from now on: peers may attend over what was pulled into its slots."""

    span: SpanRef
    slots: tuple[int, ...]


class Revoke(Message, frozen=True):
    """A span exists no more for new readers; answered by `Revoked` when no one reads or fills it."""

    span: SpanRef


class Pull(Message, frozen=True):
    """Read rBlocks from a peer's pool into the own pool and verify each against its checksum; answered by `Pulled`.

    span: the own span they go into (it is pinned meanwhile), or None when the blocks come home to their debtor.
    """

    pull_id: Count
    source_id: InstanceId
    source_incarnation: int
    source_slots: tuple[int, ...]
    slots: tuple[int, ...]
    checksums: tuple[int, ...]
    span: SpanRef | None = None


class Peers(Message, frozen=True):
    """The live members and their tensor endpoints; replaces the list before it."""

    members: tuple[Member, ...]


class StatsQuery(Message, frozen=True):
    """Answered at once by `WorkerStats`."""

    query_id: Count


class Shutdown(Message, frozen=True):
    """Finish the current step and exit 0."""
