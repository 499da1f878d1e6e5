"""What a worker remembers of requests from step to step."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping, Sequence

from distkv.engine.sampling.history import Histories
from distkv.engine.sampling.sampler import SequenceOutput
from distkv.engine.step.batch import PlannedSeq
from distkv.errors import MalformedMessage
from distkv.token_ids import unpack
from distkv.wire.messages.common import clipped
from distkv.wire.messages.from_worker import SeqResult
from distkv.wire.messages.to_worker import SeqStep, Step

_NOTHING = (-1, -1)
"""The position and the token where none was sampled."""


class Requests:
    """Per request: the last token that was sampled, which a Step sent ahead leaves out; the last attempt that lost a
    creditor, for later steps of that attempt are void; and all its ids if it has penalties."""

    def __init__(self, histories: Histories) -> None:
        self._histories = histories
        self._sampled: dict[str, tuple[int, int]] = {}
        self._lost_attempt: dict[str, int] = {}

    def plan(self, step: Step, sampling: Sequence[SeqStep] = ()) -> list[PlannedSeq]:
        """The sequences that count, with all their tokens. sampling: for which the step before samples a token at this
        moment, in this order. Raises MalformedMessage when the step contradicts itself or the steps before."""
        sources = {seq.request_id: (seq.end, source) for source, seq in enumerate(sampling)}
        seqs = [seq for seq in step.seqs if not self._is_void(seq)] if self._lost_attempt else step.seqs
        planned = [self._planned(seq, sources) for seq in seqs]
        for one in planned:
            if one.step.history:
                self._histories.write(one.step.request_id, one.step.start, one.tokens)
        return planned

    def commit(
        self, step: Step, planned: Sequence[PlannedSeq], outputs: Mapping[str, SequenceOutput]
    ) -> tuple[SeqResult, ...]:
        """Remember what was sampled and what was lost. Results are in the order of the step's sequences."""
        lost = {one.step.request_id: one.lost for one in planned}
        return tuple(
            self._committed(seq, lost[seq.request_id], outputs)
            if seq.request_id in lost
            else SeqResult(request_id=seq.request_id, attempt=seq.attempt, status="void")
            for seq in step.seqs
        )

    def forget(self, request_ids: Iterable[str]) -> None:
        """Drop what is remembered of these requests."""
        for request_id in request_ids:
            self._sampled.pop(request_id, None)
            self._lost_attempt.pop(request_id, None)
            self._histories.forget(request_id)

    def _is_void(self, seq: SeqStep) -> bool:
        return seq.attempt <= self._lost_attempt.get(seq.request_id, -1)

    def _planned(self, seq: SeqStep, sources: Mapping[str, tuple[int, int]]) -> PlannedSeq:
        tokens, end = unpack(seq.tokens) if seq.tokens else array("i"), seq.end
        missing = end - seq.start - len(tokens)
        if missing == 0 and tokens:
            return PlannedSeq(seq, tokens)
        if sources:
            position, source = sources.get(seq.request_id, _NOTHING)
            if missing == 1 and position == end - 1:
                tokens.append(0)
                return PlannedSeq(seq, tokens, source=source)
        position, token = self._sampled.get(seq.request_id, _NOTHING)
        if missing != 1 or position != end - 1:
            raise MalformedMessage(
                f"{seq.request_id}: {len(tokens)} tokens for [{seq.start}, {end}), last sampled was {position}"
            )
        tokens.append(token)
        return PlannedSeq(seq, tokens)

    def _committed(self, seq: SeqStep, lost: set[str], outputs: Mapping[str, SequenceOutput]) -> SeqResult:
        name, attempt = seq.request_id, seq.attempt
        if lost:
            self._lost_attempt[name] = attempt
            return SeqResult(request_id=name, attempt=attempt, status="lost", lost=tuple(sorted(lost)))
        output = outputs[name]
        if output.token is not None:
            self._sampled[name] = (seq.end, output.token)
        return SeqResult(
            request_id=name,
            attempt=attempt,
            status="ok",
            token=output.token,
            logprobs=output.logprobs,
            prompt_logprobs=output.prompt_logprobs,
            complete=output.complete,
            problem=clipped(output.problem),
            is_fault=output.is_fault,
            may_come_again=output.may_come_again,
        )
