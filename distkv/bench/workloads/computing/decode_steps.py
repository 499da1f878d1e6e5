"""Decode steps of the engine alone, without processes and messages around it."""

from __future__ import annotations

from array import array
from typing import NoReturn, Protocol

import torch

from distkv.engine.attention.creditor_link import Peers
from distkv.engine.device.pool import KvPool, slot_bytes
from distkv.engine.model.decoder import Model
from distkv.engine.step.runner import Begun, StepRunner
from distkv.token_ids import pack
from distkv.wire.messages.common import Run
from distkv.wire.messages.to_worker import RemoteSpan, Sampling, SeqStep, Step

BLOCK_TOKENS = 16
GREEDY = Sampling(temperature=0.0, top_k=0, top_p=1.0, seed=0)
_VALUE = 0.01


class NoPeers:
    """Peers of an instance that is alone."""

    def creditor(self, instance_id: str, microbatch: int = 0) -> NoReturn:
        """Nobody asks for one."""
        raise AssertionError(f"{instance_id} is no peer")

    fetch_link = creditor


class Lending(Peers, Protocol):
    """The only peer, with whom the first blocks of all sequences lie."""

    def span(self, sequence: int, num_blocks: int) -> RemoteSpan:
        """The first blocks of a sequence."""

    def answer(self, step_id: int) -> None:
        """A step is next."""


class DecodeSteps:
    """`batch` sequences behind `context` tokens each, whose keys and values are all alike; up to `steps` steps."""

    def __init__(self, model: Model, batch: int, context: int, steps: int, creditor: Lending | None = None) -> None:
        """creditor: has the first half of each context."""
        self.batch, self._context, self._done = batch, context, 0
        self._creditor, self._lent = creditor, context // 2 // BLOCK_TOKENS if creditor else 0
        self._blocks = -(-(context + steps) // BLOCK_TOKENS) - self._lent
        size_bytes = batch * self._blocks * slot_bytes(model.config, BLOCK_TOKENS, model.dtype)
        memory = torch.empty(size_bytes, dtype=torch.uint8, device=model.device.place)
        memory.view(model.dtype).fill_(_VALUE)
        layout = model.device.backend.layout
        pool = KvPool(model.config, batch * self._blocks, BLOCK_TOKENS, model.dtype, memory, layout)
        self.runner = StepRunner(model, pool, creditor or NoPeers())

    def run(self, count: int) -> None:
        """So many steps, one token of each for every sequence; returns when they are known. As in a worker each begins
        while the one before is under way, where the device allows that."""
        before: Begun | None = None
        for _ in range(count):
            step = self.next_step()
            if before is not None and not self.runner.may_follow(step, before):
                self.runner.finish(before)
                before = None
            begun = self.runner.begin(step, before)
            if before is not None:
                self.runner.finish(before)
            before = begun
        if before is not None:
            self.runner.finish(before)

    def next_step(self) -> Step:
        """The next of what `run` runs. The one before has to be begun."""
        at = self._context + self._done
        seqs = tuple(
            SeqStep(
                request_id=str(index),
                attempt=0,
                version=0,
                start=at,
                end=at + 1,
                tokens=b"" if self._done else pack(array("i", [index])),
                local=(Run(self._lent, index * self._blocks, at // BLOCK_TOKENS + 1 - self._lent),),
                remote=() if self._creditor is None else (self._creditor.span(index, self._lent),),
                sample=GREEDY,
            )
            for index in range(self.batch)
        )
        self._done += 1
        if self._creditor is not None:
            self._creditor.answer(self._done)
        return Step(step_id=self._done, seqs=seqs)

    @property
    def graphs(self) -> str:
        """What became of captured graphs, in words."""
        return self.runner.graphs

    @property
    def context(self) -> int:
        """Tokens behind each sequence now."""
        return self._context + self._done
