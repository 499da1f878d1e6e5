"""What an engine worker reads from its rManager, on one ordered channel.

Steps are executed in order and answered in order. `Checksum` and `Pull` run beside them, in order too. `Grant` and
`Revoke` take effect at once; `Revoked` is sent when the last reader of the span is done.
"""

from __future__ import annotations

import msgspec

from distkv.structured_output import StructuredOutput
from distkv.token_ids import ID_BYTES
from distkv.wire.messages.common import (
    Count,
    InstanceId,
    Member,
    Message,
    PackedChecksums,
    PackedIds,
    RequestId,
    Run,
    SpanRef,
    Value,
)


class Sampling(Value, frozen=True, omit_defaults=True):
    """How to choose the next token; the noise is a pure function of (seed, position). See SamplingParams."""

    temperature: float  #: 0 is greedy
    top_k: int  #: keep this many tokens; 0 is off
    top_p: float  #: keep this much probability, in (0, 1]
    seed: int  #: fixed when the request is admitted
    min_p: float = 0.0  #: as in `SamplingParams`
    repetition_penalty: float = 1.0  #: as in `SamplingParams`; on the logits of all tokens before
    presence_penalty: float = 0.0  #: as in `SamplingParams`; on the logits of tokens from `prompt_tokens` on
    frequency_penalty: float = 0.0  #: as in `SamplingParams`; on the same logits
    logit_bias: dict[int, float] = msgspec.field(
        default_factory=dict
    )  #: as in `SamplingParams`; all ids are in the vocabulary
    prompt_tokens: Count = 0  #: tokens of the prompt; those behind it are output
    #: how many most likely tokens to give the logprobs of, besides the chosen one's; None for none at all
    logprobs: Count | None = None
    allowed_token_ids: tuple[int, ...] = ()  #: no others are chosen; none stands for all. All are in the vocabulary
    #: not to be chosen here: the ids that end the request before its `min_tokens`, and `bad_words` of one token
    forbidden_token_ids: tuple[int, ...] = ()
    #: `bad_words` of several tokens: the last one is not chosen where the output ends with the others
    bad_words: tuple[tuple[int, ...], ...] = ()
    grammar_id: Count | None = None  #: a compiled grammar: no token is chosen that the output cannot have next


class PromptLogprobs(Value, frozen=True):
    """Prompt tokens whose logprobs are wanted. The row before a position predicts it, so `first` is above the Step's
    `start`."""

    first: Count  #: position of the first of them
    token_ids: PackedIds  #: the ids at `first` and on
    top: Count  #: how many most likely tokens to give besides, for each

    @property
    def num_tokens(self) -> int:
        """How many they are."""
        return len(self.token_ids) // ID_BYTES


class RemoteSpan(Value, frozen=True):
    """rBlocks of a sequence that lie in a span of a creditor."""

    instance_id: InstanceId  #: the creditor
    span: SpanRef  #: the span they lie in
    index: Count  #: position in the span of the first of them
    first_block: Count  #: first logical rBlock of the sequence
    num_blocks: Count  #: how many


class SeqStep(Value, frozen=True, omit_defaults=True):
    """Compute positions [start, end) of one sequence, each attending to itself and everything before it."""

    request_id: RequestId  #: the sequence
    version: Count  #: placement version; grows whenever an rBlock of the sequence changes place
    attempt: Count  #: grows whenever Steps of the sequence were lost or withdrawn; Steps of a lost attempt are void
    start: Count  #: first position to compute
    end: Count  #: position after the last
    #: ids of these positions; one fewer when the last is the token the worker sampled for it just before
    tokens: PackedIds
    #: where its own rBlocks with positions below `end` lie, ascending, those written by this Step included
    local: tuple[Run, ...]
    remote: tuple[RemoteSpan, ...] = ()  #: where its borrowed ones lie, ascending
    sample: Sampling | None = None  #: how to sample position `end`; None when no token is wanted
    #: keep the ids by position until `Forget`, for penalties and bad words; the same in all Steps of a request
    history: bool = False
    prompt_logprobs: PromptLogprobs | None = None  #: those to return that were not returned yet


class Step(Message, frozen=True):
    """One forward pass over a batch; answered by `StepResult`."""

    step_id: Count  #: grows by one
    seqs: tuple[SeqStep, ...]  #: the sequences; queries of each see the keys at positions up to their own


class Compile(Message, frozen=True):
    """Compile what outputs must be, beside Steps; answered by `Compiled`, before any Step names the grammar."""

    grammar_id: Count  #: names the grammar; never used again
    output: StructuredOutput  #: what it is made of


class Forget(Message, frozen=True):
    """Drop what is kept of these requests and grammars; no later Step names them in the same attempt."""

    request_ids: tuple[RequestId, ...] = ()  #: requests to forget
    grammar_ids: tuple[Count, ...] = ()  #: grammars to forget


class Checksum(Message, frozen=True):
    """Checksum these slots of the own pool; answered by `Checksummed`."""

    checksum_id: Count  #: names this command
    slots: tuple[int, ...]  #: slots of the own pool


class Grant(Message, frozen=True):
    """A span exists from now on: peers may attend over what was pulled into its slots."""

    span: SpanRef  #: the span
    slots: tuple[int, ...]  #: its slots, in span order


class Revoke(Message, frozen=True):
    """A span, or a part of it, exists no more for new readers; answered by `Revoked` when no one reads or fills it."""

    span: SpanRef  #: the span
    positions: tuple[Count, ...] = ()  #: which positions of it; none stands for all


class Pull(Message, frozen=True):
    """Read rBlocks from a peer's pool into the own pool and verify each against its checksum; answered by `Pulled`."""

    pull_id: Count  #: names this pull
    source_id: InstanceId  #: instance to read from
    source_incarnation: int  #: its incarnation; another one is not read
    source_slots: tuple[int, ...]  #: slots there
    slots: tuple[int, ...]  #: slots here, same order
    checksums: PackedChecksums  #: what each must have after the copy, same order
    #: the lent span they go into, pinned meanwhile; None when their debtor takes them back
    span: SpanRef | None = None


class Link(Message, frozen=True):
    """Have a link for queries to a peer that lends, before a Step needs it; answered by `Linked`."""

    instance_id: InstanceId  #: the peer
    incarnation: int  #: its incarnation; another one is not linked to


class Peers(Message, frozen=True):
    """What changed in the live members and their tensor endpoints."""

    members: tuple[Member, ...]  #: live peers whose incarnation or tensor endpoint is new; they replace what was known
    gone: tuple[InstanceId, ...] = ()  #: peers that are none any more


class StatsQuery(Message, frozen=True):
    """Answered at once by `WorkerStats`."""

    query_id: Count  #: repeated in the answer


class Shutdown(Message, frozen=True):
    """Finish the current step and exit 0."""
