"""From the last hidden states of a step to what it found for each of its sequences."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from distkv.engine.device.device import PendingCopy
from distkv.engine.model.decoder import Model
from distkv.engine.sampling.constraints import Constraints, Masks
from distkv.engine.sampling.distribution import argmax, checked, choose
from distkv.engine.sampling.draws import Draw, completing, is_greedy, tables_of
from distkv.engine.sampling.history import Histories
from distkv.engine.sampling.logprobs import Scored, read, score, score_in_slices
from distkv.engine.sampling.seen import SeenTokens
from distkv.engine.step.batch import Batch, BatchSeq, PlannedSeq
from distkv.structured_output import FIELD
from distkv.token_ids import unpack
from distkv.types import TokenLogprobs
from distkv.wire.messages.counters import Counters
from distkv.wire.messages.to_worker import Sampling

Sequenced = BatchSeq | PlannedSeq

HOST_NUMBERS = 2**18
"""Scores that a CPU draws from at once, so that they stay in its cache: some rows, one at least."""
NOT_FINITE = (
    "the logits are no finite numbers: weights of the checkpoint are broken, or its numbers are too large for the dtype"
)


@dataclass(slots=True)
class SequenceOutput:
    """What a step found for one sequence; see SeqResult."""

    token: int | None = None
    logprobs: TokenLogprobs | None = None
    prompt_logprobs: tuple[TokenLogprobs, ...] = ()
    complete: bool = False
    problem: str = ""
    is_fault: bool = False
    may_come_again: bool = False


@dataclass(slots=True)
class Sampled:
    """What is on its way to the host. tokens: int64 [M], on the device, of `wanted`, each of the vocabulary. scored:
    rows of it whose logprobs come; prompts: (sequence, number of its tokens, most likely ones of each) in the order in
    which theirs come."""

    tokens: Tensor
    wanted: list[tuple[Sequenced, Sampling]]
    scored: list[int]
    prompts: list[tuple[Sequenced, list[int]]]
    copy: PendingCopy


class Sampler:
    """Tokens are chosen where the logits lie, all of a step at once, and the host waits for them once."""

    def __init__(self, model: Model, histories: Histories, constraints: Constraints) -> None:
        self._model, self._histories, self._constraints = model, histories, constraints
        self._seen = SeenTokens(histories, model.config.vocab_size, model.device.place)

    def begin(
        self, batches: Sequence[Batch], hidden: Sequence[Tensor], masks: Masks, counters: Counters
    ) -> Sampled | None:
        """Choose tokens, and have them sent to the host; None if there are no rows. hidden: of the wanted rows of each
        batch, [M, hidden]. masks: of those that have a grammar. Counts model_s."""
        if not batches:
            masks.drop()
            return None
        started_s = time.perf_counter()
        counts = [sum(seq.step.sample is not None for seq in batch.seqs) for batch in batches]
        next_rows = [rows[:count] for rows, count in zip(hidden, counts, strict=True)]
        logits = self._model.logits(next_rows[0] if len(batches) == 1 else torch.cat(next_rows))
        counters.model_s += time.perf_counter() - started_s
        prompts = [(batch.seqs, rows[count:]) for batch, rows, count in zip(batches, hidden, counts, strict=True)]
        return self._sample([seq for batch in batches for seq in batch.seqs], prompts, logits, None, masks)

    def begin_decodes(
        self, planned: Sequence[PlannedSeq], logits: Tensor, likeliest: Sequence[Tensor], masks: Masks
    ) -> Sampled:
        """The same for a step whose logits are there, float32 [N, vocab] of its N sequences, one row each, and the
        likeliest tokens; see `Model.likeliest`."""
        return self._sample(planned, (), logits, likeliest, masks)

    def finish(
        self, planned: Sequence[PlannedSeq], sampled: Sampled | None, counters: Counters
    ) -> dict[str, SequenceOutput]:
        """What came of `begin`, by request id. Waits for the device: with what is sampled it has done all before it.
        Counts model_s."""
        outputs = {one.step.request_id: SequenceOutput() for one in planned}
        if sampled is not None:
            started_s = time.perf_counter()
            found = sampled.copy.wait()
            counters.model_s += time.perf_counter() - started_s
            self._report(sampled, found, outputs)
        return outputs

    def forget(self, request_ids: Iterable[str]) -> None:
        """Drop what is kept of these requests."""
        self._seen.forget(request_ids)

    def _sample(
        self,
        seqs: Sequence[Sequenced],
        of_prompts: Sequence[tuple[Sequence[BatchSeq], Tensor]],
        logits: Tensor,
        likeliest: Sequence[Tensor] | None,
        masks: Masks,
    ) -> Sampled:
        """logits: of the rows that predict the next token of a sequence; likeliest: tokens of each, if they are known.
        of_prompts: per batch, the hidden states of those that predict prompt tokens."""
        device = self._model.device
        wanted = [(seq, seq.step.sample) for seq in seqs if seq.step.sample is not None]
        if masks.are_any:
            masks.apply(logits, {seq.step.request_id: row for row, (seq, _) in enumerate(wanted)}, device)
            likeliest = None
        tokens, checked = self._choose(wanted, logits, likeliest)
        slices: list[Scored] = []
        scored = [row for row, (seq, sampling) in enumerate(wanted) if sampling.logprobs is not None and not seq.lost]
        if scored:
            top = max(wanted[row][1].logprobs or 0 for row in scored)
            if len(scored) == len(wanted):
                slices.append(score(logits, tokens, top))
            else:
                (rows,) = device.to_device(torch.tensor(scored))
                slices.append(score(logits.index_select(0, rows), tokens.index_select(0, rows), top))
        prompts: list[tuple[Sequenced, list[int]]] = []
        for batch_seqs, rows in of_prompts:
            start = 0
            for seq in batch_seqs:
                if (asked := seq.step.prompt_logprobs) is None:
                    continue
                end = start + asked.num_tokens
                if not seq.lost:
                    (ids,) = device.to_device(torch.tensor(unpack(asked.token_ids), dtype=torch.int64))
                    parts = list(score_in_slices(self._model.logits, rows[start:end], ids, asked.top))
                    slices += parts
                    prompts.append((seq, [len(part.ranks) for part in parts]))
                start = end
        copy = device.to_host(checked, *(part for one in slices for part in one))
        return Sampled(tokens, wanted, scored, prompts, copy)

    def _report(self, sampled: Sampled, found: Sequence[Tensor], outputs: dict[str, SequenceOutput]) -> None:
        """found: on the host, as `Sampled.copy` has them."""
        checked, *parts = found
        vocab_size = self._model.config.vocab_size
        slices = [Scored(*parts[first : first + 5]) for first in range(0, len(parts), 5)]
        for (seq, sampling), token in zip(sampled.wanted, checked.tolist(), strict=True):
            output = outputs[seq.step.request_id]
            output.token = min(token, vocab_size - 1)
            if sampling.grammar_id is not None and not seq.lost:
                constraint = self._constraints.sampled(seq.step.request_id, output.token)
                output.complete = constraint.is_complete
                output.problem = constraint.problem and f"{FIELD}: {constraint.problem}"
                output.may_come_again = constraint.may_come_again
            if token >= vocab_size:
                output.problem, output.is_fault = NOT_FINITE, True
        if sampled.scored:
            tops = [sampled.wanted[row][1].logprobs or 0 for row in sampled.scored]
            for row, logprobs in zip(sampled.scored, read(slices.pop(0), tops), strict=True):
                outputs[sampled.wanted[row][0].step.request_id].logprobs = logprobs
        rest = iter(slices)
        for seq, sizes in sampled.prompts:
            assert seq.step.prompt_logprobs is not None
            output = outputs[seq.step.request_id]
            for size in sizes:
                read_slice = read(next(rest), [seq.step.prompt_logprobs.top] * size)
                output.prompt_logprobs += tuple(read_slice)
                if not all(math.isfinite(one.logprob) for one in read_slice):
                    output.problem, output.is_fault = NOT_FINITE, True

    def _choose(
        self, wanted: Sequence[tuple[Sequenced, Sampling]], logits: Tensor, likeliest: Sequence[Tensor] | None
    ) -> Sequence[Tensor]:
        """Both int64 [M], where the logits [M, vocab] lie: a token of the vocabulary for each sequence, for a step that
        goes on with it, and the same for the host, but vocab where the logits are no finite numbers."""
        draws = [
            (row, self._draw(seq, sampling))
            for row, (seq, sampling) in enumerate(wanted)
            if not is_greedy(sampling) and not seq.lost
        ]
        if not draws:
            return checked(logits, argmax(logits)) if likeliest is None else likeliest
        device, vocab_size = self._model.device, logits.shape[-1]
        are_all = len(draws) == len(logits)
        if are_all:
            tokens = torch.empty(len(logits), dtype=torch.int64, device=logits.device)
        else:
            tokens = argmax(logits) if likeliest is None else likeliest[0]
        most = len(draws) if device.is_async else max(1, HOST_NUMBERS // vocab_size)
        for first in range(0, len(draws), most):
            part = draws[first : first + most]
            tables, shape = tables_of([draw for _, draw in part], self._seen, vocab_size)
            numbers = torch.tensor([row for row, _ in part])
            rows, *there = device.to_device(numbers, *tables.present())
            of_rows = logits[first : first + most] if are_all else logits.index_select(0, rows)
            tokens.index_copy_(0, rows, choose(of_rows, tables.placed(there), shape, self._seen))
        return checked(logits, tokens)

    def _draw(self, seq: Sequenced, sampling: Sampling) -> Draw:
        step = seq.step
        bad = completing(sampling, self._histories.read(step.request_id, step.end)) if sampling.bad_words else ()
        return Draw(step.request_id, sampling, step.end, bad)
