"""From the last hidden states of a step to what it found for each of its sequences."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from distkv.engine.model.decoder import Model
from distkv.engine.sampling.constraints import Constraints, Masks
from distkv.engine.sampling.distribution import argmax, is_greedy, sample
from distkv.engine.sampling.history import Histories
from distkv.engine.sampling.logprobs import logprobs_in_slices, logprobs_of
from distkv.engine.step.batch import Batch, BatchSeq
from distkv.token_ids import unpack
from distkv.types import TokenLogprobs
from distkv.wire.messages.counters import Counters
from distkv.wire.messages.to_worker import Sampling


@dataclass(slots=True)
class SequenceOutput:
    """What a step found for one sequence; see SeqResult."""

    token: int | None = None
    logprobs: TokenLogprobs | None = None
    prompt_logprobs: tuple[TokenLogprobs, ...] = ()
    complete: bool = False
    problem: str = ""


class Sampler:
    """Tokens are chosen where the logits lie, all of a step at once, and the host waits for them once."""

    def __init__(self, model: Model, histories: Histories, constraints: Constraints) -> None:
        self._model, self._histories, self._constraints = model, histories, constraints

    def __call__(
        self, batches: Sequence[Batch], hidden: Sequence[Tensor], masks: Masks, counters: Counters
    ) -> dict[str, SequenceOutput]:
        """By request id. hidden: of the wanted rows of each batch, [M, hidden]. masks: of those that have a grammar.
        Counts model_s."""
        outputs = {seq.step.request_id: SequenceOutput() for batch in batches for seq in batch.seqs}
        if not batches:
            return outputs
        counts = [sum(seq.step.sample is not None for seq in batch.seqs) for batch in batches]
        next_rows = [rows[:count] for rows, count in zip(hidden, counts, strict=True)]
        self._sample_tokens(batches, next_rows, masks, outputs, counters)
        for batch, rows, count in zip(batches, hidden, counts, strict=True):
            self._score_prompts(batch, rows[count:], outputs)
        return outputs

    def _sample_tokens(
        self,
        batches: Sequence[Batch],
        hidden: list[Tensor],
        masks: Masks,
        outputs: dict[str, SequenceOutput],
        counters: Counters,
    ) -> None:
        """hidden: of the rows that predict the next token of a sequence."""
        wanted = [(seq, seq.step.sample) for batch in batches for seq in batch.seqs if seq.step.sample is not None]
        scored = [row for row, (_, sampling) in enumerate(wanted) if sampling.logprobs is not None]
        device = self._model.device
        started_s = time.perf_counter()
        logits = self._model.logits(hidden[0] if len(hidden) == 1 else torch.cat(hidden))
        ended_s = time.perf_counter()
        masks.apply(logits, {seq.step.request_id: row for row, (seq, _) in enumerate(wanted)})
        tokens, rows = device.to_host(self._choose(wanted, logits), _rows(logits, scored)).wait()
        # An asynchronous device has computed the model by now, the host had when the logits came.
        counters.model_s += (time.perf_counter() if device.is_async else ended_s) - started_s
        for (seq, sampling), token in zip(wanted, tokens.tolist(), strict=True):
            output = outputs[seq.step.request_id]
            output.token = token
            if sampling.grammar_id is not None and not seq.lost:
                constraint = self._constraints.sampled(seq.step.request_id, token)
                output.complete, output.problem = constraint.is_complete, constraint.problem
        for index, row in enumerate(scored):
            seq, sampling = wanted[row]
            output = outputs[seq.step.request_id]
            if not seq.lost and output.token is not None:
                (output.logprobs,) = logprobs_of(rows[index : index + 1], [output.token], sampling.logprobs or 0)

    def _choose(self, wanted: Sequence[tuple[BatchSeq, Sampling]], logits: Tensor) -> Tensor:
        """int64 [M], where the logits [M, vocab] lie: a token for each sequence."""
        tokens = argmax(logits)
        for row, (seq, sampling) in enumerate(wanted):
            if not is_greedy(sampling) and not seq.lost:
                step = seq.step
                history = self._histories.read(step.request_id, step.end) if step.history else None
                tokens[row] = sample(logits[row], sampling, step.end, history)
        return tokens

    def _score_prompts(self, batch: Batch, hidden: Tensor, outputs: dict[str, SequenceOutput]) -> None:
        """hidden: of the rows that predict prompt tokens."""
        start = 0
        for seq in batch.seqs:
            if (wanted := seq.step.prompt_logprobs) is not None:
                rows = hidden[start : start + wanted.num_tokens]
                start += len(rows)
                if not seq.lost:
                    found = logprobs_in_slices(self._model.logits, rows, unpack(wanted.token_ids), wanted.top)
                    outputs[seq.step.request_id].prompt_logprobs += found


def _rows(logits: Tensor, rows: list[int]) -> Tensor:
    if len(rows) in (0, len(logits)):
        return logits[: len(rows)]
    return logits[rows]
