"""Executes Steps in order. The worker never chooses: what to compute, where keys lie and whom to ask is in the Step."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from distkv.engine.attention import dist_attention
from distkv.engine.model import Model
from distkv.engine.pool import KvPool
from distkv.engine.prepare import Batch, prepare
from distkv.engine.remote import Peers
from distkv.engine.sampler import sample
from distkv.errors import MalformedMessage
from distkv.wire.messages.from_worker import SeqResult
from distkv.wire.messages.to_worker import SeqStep, Step


class StepRunner:
    """One model over one pool. Used by one thread.

    Remembers, per request, the last token it sampled (a Step sent ahead leaves it out) and the last of its lives that
    lost a creditor: later steps of that life are void.
    """

    def __init__(self, model: Model, pool: KvPool, peers: Peers) -> None:
        self._model, self._pool, self._peers = model, pool, peers
        self._sampled: dict[str, tuple[int, int]] = {}
        self._lost_life: dict[str, int] = {}

    @torch.inference_mode()
    def run(self, step: Step) -> tuple[SeqResult, ...]:
        """Plan → prepare → forward → sample → commit. Results are in the order of the step's sequences.

        Raises MalformedMessage when the step contradicts itself, the pool or the steps before.
        """
        planned = [(seq, self._tokens(seq)) for seq in step.seqs if not self._is_void(seq)]
        batch = prepare(step.step_id, planned, self._pool, self._model.config, self._peers)
        logits = self._forward(batch)
        tokens = self._sample(batch, logits)
        return self._commit(step, batch, tokens)

    def forget(self, request_ids: Iterable[str]) -> None:
        """Drop what is remembered of these requests."""
        for request_id in request_ids:
            self._sampled.pop(request_id, None)
            self._lost_life.pop(request_id, None)

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
        """float32 logits, a row for each sequence that wants a token, in order."""
        if not batch.seqs:
            return torch.empty(0, self._model.config.vocab_size)

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            return dist_attention(layer, q, k, v, batch, self._pool, self._model.config)

        wanted = [seq.rows.stop - 1 for seq in batch.seqs if seq.step.sample is not None]
        return self._model.forward(batch.tokens, batch.positions, attend, torch.tensor(wanted, dtype=torch.int64))

    def _sample(self, batch: Batch, logits: Tensor) -> dict[str, int]:
        tokens: dict[str, int] = {}
        rows = iter(logits)
        for seq in batch.seqs:
            if seq.step.sample is not None:
                row = next(rows)
                if not seq.lost:
                    tokens[seq.step.request_id] = sample(row, seq.step.sample, seq.step.end)
        return tokens

    def _commit(self, step: Step, batch: Batch, tokens: dict[str, int]) -> tuple[SeqResult, ...]:
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
                token = tokens.get(name)
                if token is not None:
                    self._sampled[name] = (seq.end, token)
                results.append(SeqResult(request_id=name, life=seq.life, status="ok", token=token))
        return tuple(results)
