"""Executes Steps in order. It never chooses: what to compute, where keys lie and who holds them is in the Step."""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import torch

from distkv.engine.attention.creditor_link import CreditorLink, Peers
from distkv.engine.attention.fetch.fetching import FETCH_BYTES, Fetching
from distkv.engine.attention.layer_times import LayerTimes
from distkv.engine.device.pool import KvPool
from distkv.engine.model.decoder import Model
from distkv.engine.sampling.constraints import Constraints, Masks
from distkv.engine.sampling.history import Histories
from distkv.engine.sampling.sampler import Sampled, Sampler
from distkv.engine.step.ahead import fill_in
from distkv.engine.step.batch import Batch, PlannedSeq
from distkv.engine.step.forward import Forward
from distkv.engine.step.graphs.decode import Decodes
from distkv.engine.step.graphs.step_graphs import StepGraphs
from distkv.engine.step.microbatches import Cuts, microbatches
from distkv.engine.step.prepare import prepare
from distkv.engine.step.requests import Requests
from distkv.engine.step.tables import BlockTables
from distkv.types import PrefillKv
from distkv.wire.messages.counters import Counters
from distkv.wire.messages.from_worker import SeqResult
from distkv.wire.messages.to_worker import SeqStep, Step


@dataclass(slots=True)
class Begun:
    """A step that the device has been given. batches: none if a graph computes it. sampled: None if it has no
    rows. begun_s: when, on the monotonic clock. links: to creditors that a graph asks."""

    step: Step
    planned: list[PlannedSeq]
    batches: list[Batch]
    sampled: Sampled | None
    begun_s: float
    links: Sequence[CreditorLink] = ()

    @property
    def is_done(self) -> bool:
        """Whether the device has done it, so that `StepRunner.finish` need not wait."""
        return self.sampled is None or self.sampled.copy.is_done


class StepRunner:
    """One model over one pool. Used by one thread. counters: steps, remote_steps, model_s, mask_s, attend_wait_s,
    fetched_blocks and fetched_bytes. constraints: the grammars that its Steps may name. fetching: which chunks fetch;
    None if none may. times: where those of layers with keys elsewhere go, one after another; nowhere by default."""

    def __init__(
        self,
        model: Model,
        pool: KvPool,
        peers: Peers,
        num_microbatches: int | None = None,
        prefill_kv: PrefillKv = "auto",
        fetch_bytes: int = FETCH_BYTES,
    ) -> None:
        """num_microbatches: 2 cuts steps with keys on peers in two, 1 never does, None where it pays. prefill_kv:
        whether chunks ship their queries or fetch keys. fetch_bytes: of scratch memory for keys read over links."""
        self.counters = Counters()
        self._model, self._pool, self._peers, self._num_microbatches = model, pool, peers, num_microbatches
        self._device = model.device
        self._stream = self._device.stream()
        self._cuts = Cuts() if self._device.is_async else None
        histories = Histories()
        self.constraints = Constraints(model.config.vocab_size, model.config.eos_token_ids)
        self._requests = Requests(histories)
        self._tables = BlockTables(pool)
        self.times: list[LayerTimes] | None = None
        self.fetching = (
            None if prefill_kv == "ship" else Fetching(pool, model.config, self._device, prefill_kv, fetch_bytes)
        )
        self._graphs = StepGraphs.of(model, pool, peers)
        self._forward = Forward(model, pool, self._graphs.exchanges if self._graphs else None)
        self._sample = Sampler(model, histories, self.constraints)

    def run(self, step: Step) -> tuple[SeqResult, ...]:
        """Plan → prepare → forward → sample → commit. Results are in the order of the step's sequences.

        When it returns the device has done all of it: whoever hears of the results may read what was stored. Raises
        MalformedMessage when the step contradicts itself, the pool or the steps before.
        """
        return self.finish(self.begin(step))

    @torch.inference_mode()
    def begin(self, step: Step, after: Begun | None = None) -> Begun:
        """Give the device all of a step. after: the one before, if it is not finished and this one `may_follow` it."""
        begun_s = time.monotonic()
        before = None if after is None else after.sampled
        planned = self._requests.plan(step, [seq.step for seq, _ in before.wanted] if before else ())
        masks = self.constraints.begin(planned, self.counters)
        with self._stream:
            decodes = None
            if self._graphs is not None:
                decodes = self._graphs.decodes(step.step_id, planned, is_cut=self._num_microbatches == 2)
            if decodes is not None:
                tokens = self._begin_decodes(decodes, planned, before, masks)
                return Begun(step, planned, [], tokens, begun_s, decodes.links)
            batches = self._prepare(step, planned)
            if before is not None and batches:
                (batch,) = batches
                fill_in(batch.tokens, planned, before.tokens, self._device)
            hidden = self._forward(batches, self.counters)
            if self.fetching is not None:
                for batch in batches:
                    self.fetching.attended(batch.local_pairs, batch.attend_s)
            sampled = self._sample.begin(batches, hidden, masks, self.counters)
        return Begun(step, planned, batches, sampled, begun_s)

    def may_follow(self, step: Step, begun: Begun) -> bool:
        """Whether a step may begin while the one before is under way: nothing has to be decided on the host between
        them."""
        return self._device.is_async and all(_is_plain(seq) for one in (begun.step, step) for seq in one.seqs)

    @torch.inference_mode()
    def finish(self, begun: Begun) -> tuple[SeqResult, ...]:
        """The results of a step, once the device has done it."""
        step, batches = begun.step, begun.batches
        with self._stream:
            is_remote = bool(begun.links) or any(batch.links or batch.fetched for batch in batches)
            if is_remote:
                self._device.synchronize()
            for batch in batches:
                batch.waited_s += (device_s := sum(link.settle() for link in batch.links))
                self.counters.attend_wait_s += device_s
            # A graph waits for all of them at once.
            self.counters.attend_wait_s += max((link.settle() for link in begun.links), default=0.0)
            outputs = self._sample.finish(begun.planned, begun.sampled, self.counters)
        if self._cuts is not None and len(batches) == 1 and (batches[0].links or batches[0].fetched):
            (batch,), spent_s = batches, time.monotonic() - begun.begun_s
            self._cuts.took(len(batch.tokens), spent_s - batch.waited_s, batch.waited_s)
        self.counters.steps += 1
        self.counters.remote_steps += is_remote
        return self._requests.commit(step, begun.planned, outputs)

    @property
    def graphs(self) -> str:
        """What became of captured graphs, in words: for benchmarks."""
        return self._graphs.state if self._graphs else StepGraphs.why_none(self._device)

    @torch.inference_mode()
    def capture(self) -> None:
        """All graphs of decode steps, on a device that has them."""
        if self._graphs is not None:
            with self._stream:
                self._graphs.capture_all()

    def forget(self, request_ids: Collection[str], grammar_ids: Collection[int] = ()) -> None:
        """Drop what is remembered of these requests and grammars."""
        self._requests.forget(request_ids)
        self._tables.forget(request_ids)
        if self._graphs is not None:
            self._graphs.forget(request_ids)
        self._sample.forget(request_ids)
        self.constraints.forget(request_ids, grammar_ids)

    def _begin_decodes(
        self, decodes: Decodes, planned: Sequence[PlannedSeq], before: Sampled | None, masks: Masks
    ) -> Sampled:
        """A step that is one graph."""
        started_s = time.perf_counter()
        if before is not None:
            fill_in(decodes.tokens, planned, before.tokens, self._device)
        logits, *likeliest = decodes.run()
        self.counters.model_s += time.perf_counter() - started_s
        return self._sample.begin_decodes(planned, logits, likeliest, masks)

    def _prepare(self, step: Step, planned: Sequence[PlannedSeq]) -> list[Batch]:
        """The microbatches that have rows."""
        if self.fetching is not None:
            self.fetching.begin_step()
        config, pool, peers, device = self._model.config, self._pool, self._peers, self._device
        batches = [
            prepare(step.step_id, part, pool, self._tables, config, peers, device, index, self.fetching)
            for index, part in enumerate(microbatches(planned, self._num_microbatches, self._cuts))
        ]
        for batch in batches:
            batch.times = self.times
        return [batch for batch in batches if batch.seqs]


def _is_plain(seq: SeqStep) -> bool:
    """Whether no creditor may fail it, no id of it is looked at on the host, and no grammar has to follow its token."""
    return not seq.remote and not seq.history and (seq.sample is None or seq.sample.grammar_id is None)
