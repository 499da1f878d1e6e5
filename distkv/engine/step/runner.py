"""Executes Steps in order. The worker never chooses: what to compute, where keys lie and whom to ask is in the Step."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from distkv.engine.attention.remote import Peers
from distkv.engine.device.pool import KvPool
from distkv.engine.model.decoder import Model
from distkv.engine.step.forward import Forward
from distkv.engine.step.history import Histories
from distkv.engine.step.logprobs import logprobs_in_slices, logprobs_of
from distkv.engine.step.microbatches import ROWS_WORTH_IT, Planned, halves
from distkv.engine.step.prepare import Batch, BatchSeq, prepare
from distkv.engine.step.sampler import is_plain, likeliest, sample
from distkv.errors import MalformedMessage
from distkv.types import TokenLogprobs
from distkv.wire.messages.counters import Counters
from distkv.wire.messages.from_worker import SeqResult
from distkv.wire.messages.to_worker import Sampling, SeqStep, Step


@dataclass(slots=True)
class Outcome:
    """What a step found for one sequence; see SeqResult."""

    token: int | None = None
    logprobs: TokenLogprobs | None = None
    prompt_logprobs: tuple[TokenLogprobs, ...] = ()


class StepRunner:
    """One model over one pool. Used by one thread.

    Remembers, per request, the last token it sampled (a Step sent ahead leaves it out), the last of its lives that lost
    a creditor (later steps of that life are void), and all its ids if it has penalties. counters: attend_wait_s,
    steps and model_s.
    """

    def __init__(self, model: Model, pool: KvPool, peers: Peers, microbatches: int | None = None) -> None:
        """microbatches: 2 computes steps that ask peers in two halves, 1 never does, None where it pays."""
        self._model, self._pool, self._peers, self._microbatches = model, pool, peers, microbatches
        self._device = model.compute.device
        self._stream = self._device.stream()
        self._forward = Forward(model, pool)
        self._sampled: dict[str, tuple[int, int]] = {}
        self._lost_attempt: dict[str, int] = {}
        self._histories = Histories()
        self.counters = Counters()

    @torch.inference_mode()
    def run(self, step: Step) -> tuple[SeqResult, ...]:
        """Plan → prepare → forward → sample → commit. Results are in the order of the step's sequences.

        When it returns the device has done all of it: whoever hears of the results may read what was stored. Raises
        MalformedMessage when the step contradicts itself, the pool or the steps before.
        """
        planned: list[Planned] = [(seq, self._tokens(seq)) for seq in step.seqs if not self._is_void(seq)]
        for seq, tokens in planned:
            if seq.history:
                self._histories.write(seq.request_id, seq.start, tokens)
        with self._stream:
            batches = [
                prepare(step.step_id, part, self._pool, self._model.config, self._peers, self._device, half)
                for half, part in enumerate(self._parts(planned))
            ]
            computed = [batch for batch in batches if batch.seqs]
            outcomes = self._outcomes(computed) if computed else {}
            self._device.synchronize()
        self.counters.attend_wait_s += sum(batch.waited_s for batch in batches)
        self.counters.steps += 1
        return self._commit(step, batches, outcomes)

    def forget(self, request_ids: Iterable[str]) -> None:
        """Drop what is remembered of these requests."""
        for request_id in request_ids:
            self._sampled.pop(request_id, None)
            self._lost_attempt.pop(request_id, None)
            self._histories.forget(request_id)

    def _is_void(self, seq: SeqStep) -> bool:
        return seq.attempt <= self._lost_attempt.get(seq.request_id, -1)

    def _tokens(self, seq: SeqStep) -> tuple[int, ...]:
        missing = seq.end - seq.start - len(seq.tokens)
        if missing == 0 and seq.tokens:
            return seq.tokens
        position, token = self._sampled.get(seq.request_id, (-1, -1))
        if missing != 1 or position != seq.end - 1:
            raise MalformedMessage(
                f"{seq.request_id}: {len(seq.tokens)} tokens for [{seq.start}, {seq.end}), last sampled was {position}"
            )
        return (*seq.tokens, token)

    def _parts(self, planned: list[Planned]) -> list[list[Planned]]:
        if self._microbatches == 1 or not any(seq.remote for seq, _ in planned):
            return [planned]
        if self._microbatches is None:
            num_rows = sum(len(tokens) for _, tokens in planned)
            if not self._device.is_async or num_rows < ROWS_WORTH_IT:
                return [planned]
        return halves(planned)

    def _outcomes(self, batches: list[Batch]) -> dict[str, Outcome]:
        sampled = [(seq, seq.step.sample) for batch in batches for seq in batch.seqs if seq.step.sample is not None]
        told = [row for row, (_, sampling) in enumerate(sampled) if sampling.logprobs is not None]
        started_s = time.perf_counter()
        hidden = self._forward.run(batches)
        counts = [sum(seq.step.sample is not None for seq in batch.seqs) for batch in batches]
        logits = self._model.logits(_joined([rows[:count] for rows, count in zip(hidden, counts, strict=True)]))
        ended_s = time.perf_counter()
        # All tokens are chosen where the logits lie, and awaited once.
        chosen = self._chosen(sampled, logits)
        tokens, rows = self._device.to_host(chosen, _rows(logits, told)).wait()
        # An asynchronous device has computed by now, the host's had when the logits came.
        self.counters.model_s += (time.perf_counter() if self._device.is_async else ended_s) - started_s
        outcomes = {seq.step.request_id: Outcome() for batch in batches for seq in batch.seqs}
        for (seq, _), token in zip(sampled, tokens.tolist(), strict=True):
            outcomes[seq.step.request_id].token = token
        for index, row in enumerate(told):
            seq, sampling = sampled[row]
            outcome = outcomes[seq.step.request_id]
            if not seq.lost and outcome.token is not None:
                (outcome.logprobs,) = logprobs_of(rows[index : index + 1], [outcome.token], sampling.logprobs or 0)
        for batch, last, count in zip(batches, hidden, counts, strict=True):
            self._score_prompts(batch, last[count:], outcomes)
        return outcomes

    def _chosen(self, sampled: list[tuple[BatchSeq, Sampling]], logits: Tensor) -> Tensor:
        """int64 [M], where the logits [M, vocab] lie: a token for each sequence."""
        tokens = likeliest(logits)
        for row, (seq, sampling) in enumerate(sampled):
            if not is_plain(sampling) and not seq.lost:
                step = seq.step
                history = self._histories.read(step.request_id, step.end) if step.history else None
                tokens[row] = sample(logits[row], sampling, step.end, history)
        return tokens

    def _score_prompts(self, batch: Batch, hidden: Tensor, outcomes: dict[str, Outcome]) -> None:
        """hidden: of the rows that predict prompt tokens."""
        start = 0
        for seq in batch.seqs:
            if (wanted := seq.step.prompt_logprobs) is not None:
                rows = hidden[start : start + len(wanted.token_ids)]
                start += len(rows)
                if not seq.lost:
                    found = logprobs_in_slices(self._model.logits, rows, wanted.token_ids, wanted.top)
                    outcomes[seq.step.request_id].prompt_logprobs += found

    def _commit(self, step: Step, batches: list[Batch], outcomes: dict[str, Outcome]) -> tuple[SeqResult, ...]:
        lost: dict[str, set[str]] = {}
        for batch in batches:
            for one in (*batch.seqs, *batch.unreachable):
                lost.setdefault(one.step.request_id, set()).update(one.lost)
        results = []
        for seq in step.seqs:
            name = seq.request_id
            if self._is_void(seq):
                results.append(SeqResult(request_id=name, attempt=seq.attempt, status="void"))
            elif lost[name]:
                self._lost_attempt[name] = seq.attempt
                results.append(
                    SeqResult(request_id=name, attempt=seq.attempt, status="lost", lost=tuple(sorted(lost[name])))
                )
            else:
                done = outcomes[name]
                if done.token is not None:
                    self._sampled[name] = (seq.end, done.token)
                results.append(
                    SeqResult(
                        request_id=name,
                        attempt=seq.attempt,
                        status="ok",
                        token=done.token,
                        logprobs=done.logprobs,
                        prompt_logprobs=done.prompt_logprobs,
                    )
                )
        return tuple(results)


def _rows(logits: Tensor, rows: list[int]) -> Tensor:
    if len(rows) in (0, len(logits)):
        return logits[: len(rows)]
    return logits[rows]


def _joined(parts: list[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(parts)
