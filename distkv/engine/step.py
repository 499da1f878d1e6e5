"""Executes Steps in order. The worker never chooses: what to compute, where keys lie and whom to ask is in the Step."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from distkv.engine.attention import dist_attention
from distkv.engine.history import Histories
from distkv.engine.logprobs import logprobs_in_slices, logprobs_of
from distkv.engine.model import Model
from distkv.engine.pool import KvPool
from distkv.engine.prepare import Batch, BatchSeq, prepare
from distkv.engine.remote import Peers
from distkv.engine.sampler import is_plain, likeliest, sample
from distkv.errors import MalformedMessage
from distkv.kernels import Backend, Heads
from distkv.types import TokenLogprobs
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
    a creditor (later steps of that life are void), and all its ids if it has penalties. attend_wait_s, steps,
    model_s: see Counters.
    """

    def __init__(self, model: Model, pool: KvPool, peers: Peers, backend: Backend) -> None:
        self._model, self._pool, self._peers, self._backend = model, pool, peers, backend
        self._forward_here = model.forward_over([pool.layer(index) for index in range(model.config.num_layers)])
        self._sampled: dict[str, tuple[int, int]] = {}
        self._lost_life: dict[str, int] = {}
        self._histories = Histories()
        self.attend_wait_s = 0.0
        self.steps = 0
        self.model_s = 0.0

    @torch.inference_mode()
    def run(self, step: Step) -> tuple[SeqResult, ...]:
        """Plan → prepare → forward → sample → commit. Results are in the order of the step's sequences.

        Raises MalformedMessage when the step contradicts itself, the pool or the steps before.
        """
        planned = [(seq, self._tokens(seq)) for seq in step.seqs if not self._is_void(seq)]
        for seq, tokens in planned:
            if seq.history:
                self._histories.write(seq.request_id, seq.start, tokens)
        batch = prepare(step.step_id, planned, self._pool, self._model.config, self._peers)
        outcomes = self._outcomes(batch) if batch.seqs else {}
        self.attend_wait_s += batch.waited_s
        self.steps += 1
        return self._commit(step, batch, outcomes)

    def forget(self, request_ids: Iterable[str]) -> None:
        """Drop what is remembered of these requests."""
        for request_id in request_ids:
            self._sampled.pop(request_id, None)
            self._lost_life.pop(request_id, None)
            self._histories.forget(request_id)

    def _is_void(self, seq: SeqStep) -> bool:
        return seq.life <= self._lost_life.get(seq.request_id, -1)

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

    def _forward(self, batch: Batch) -> Tensor:
        """Hidden states [M, hidden]: a row for each sequence that wants a token, in order, then all rows that predict
        prompt tokens whose logprobs are wanted."""

        def attend(layer: int, heads: Heads) -> Tensor:
            return dist_attention(layer, heads, batch, self._pool, self._backend, self._model.config)

        wanted = [seq.rows.stop - 1 for seq in batch.seqs if seq.step.sample is not None]
        for seq in batch.seqs:
            wanted.extend(_prompt_rows(seq))
        rows = torch.tensor(wanted, dtype=torch.int64)
        if self._forward_here is not None and not batch.exchanges:
            return self._forward_here(batch.tokens, batch.tables, batch.slots, batch.offsets, rows)
        return self._model.forward(batch.tokens, batch.positions, attend, rows)

    def _outcomes(self, batch: Batch) -> dict[str, Outcome]:
        sampled = [(seq, seq.step.sample) for seq in batch.seqs if seq.step.sample is not None]
        started_s = time.perf_counter()
        hidden = self._forward(batch)
        logits = self._model.logits(hidden[: len(sampled)])
        self.model_s += time.perf_counter() - started_s
        outcomes = {seq.step.request_id: Outcome() for seq in batch.seqs}
        for row, ((seq, sampling), token) in enumerate(zip(sampled, likeliest(logits), strict=True)):
            if not seq.lost:
                outcomes[seq.step.request_id] = self._sampled_one(seq.step, sampling, token, logits, row)
        start = len(sampled)
        for seq in batch.seqs:
            if (wanted := seq.step.prompt_logprobs) is not None:
                rows = hidden[start : start + len(wanted.token_ids)]
                start += len(rows)
                if not seq.lost:
                    found = logprobs_in_slices(self._model.logits, rows, wanted.token_ids, wanted.top)
                    outcomes[seq.step.request_id].prompt_logprobs = found
        return outcomes

    def _sampled_one(self, step: SeqStep, sampling: Sampling, token: int, logits: Tensor, row: int) -> Outcome:
        """token: the likeliest one by the row's logits."""
        if not is_plain(sampling):
            history = self._histories.read(step.request_id, step.end) if step.history else None
            token = sample(logits[row], sampling, step.end, history)
        if sampling.logprobs is None:
            return Outcome(token)
        (logprobs,) = logprobs_of(logits[row : row + 1], [token], sampling.logprobs)
        return Outcome(token, logprobs)

    def _commit(self, step: Step, batch: Batch, outcomes: dict[str, Outcome]) -> tuple[SeqResult, ...]:
        lost = {seq.step.request_id: tuple(sorted(seq.lost)) for seq in (*batch.seqs, *batch.unreachable) if seq.lost}
        results = []
        for seq in step.seqs:
            name = seq.request_id
            if self._is_void(seq):
                results.append(SeqResult(request_id=name, life=seq.life, status="void"))
            elif name in lost:
                self._lost_life[name] = seq.life
                results.append(SeqResult(request_id=name, life=seq.life, status="lost", lost=lost[name]))
            else:
                done = outcomes[name]
                if done.token is not None:
                    self._sampled[name] = (seq.end, done.token)
                results.append(
                    SeqResult(
                        request_id=name,
                        life=seq.life,
                        status="ok",
                        token=done.token,
                        logprobs=done.logprobs,
                        prompt_logprobs=done.prompt_logprobs,
                    )
                )
        return tuple(results)


def _prompt_rows(seq: BatchSeq) -> range:
    """Rows of the batch that predict the prompt tokens whose logprobs are wanted."""
    step, wanted = seq.step, seq.step.prompt_logprobs
    if wanted is None:
        return range(0)
    end = wanted.first + len(wanted.token_ids)
    if not step.start < wanted.first <= end <= step.end + 1:
        raise MalformedMessage(
            f"{step.request_id}: [{step.start}, {step.end}) predicts no positions [{wanted.first}, {end})"
        )
    first = seq.rows.start + wanted.first - 1 - step.start
    return range(first, first + len(wanted.token_ids))
