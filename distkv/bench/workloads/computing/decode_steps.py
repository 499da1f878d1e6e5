"""Decode steps of the engine alone, without processes and messages around it."""

from __future__ import annotations

from array import array
from typing import NoReturn

import torch

from distkv.engine.device.pool import KvPool, slot_bytes
from distkv.engine.model.decoder import Model
from distkv.engine.step.runner import StepRunner
from distkv.token_ids import pack
from distkv.wire.messages.common import Run
from distkv.wire.messages.to_worker import Sampling, SeqStep, Step

BLOCK_TOKENS = 16
GREEDY = Sampling(temperature=0.0, top_k=0, top_p=1.0, seed=0)
_VALUE = 0.01


class NoPeers:
    """Peers of an instance that is alone."""

    def creditor(self, instance_id: str, microbatch: int = 0) -> NoReturn:
        """Nobody asks for one."""
        raise AssertionError(f"{instance_id} is no peer")

    fetch_link = creditor


class DecodeSteps:
    """`batch` sequences behind `context` tokens each, whose keys and values are all alike; up to `steps` steps."""

    def __init__(self, model: Model, batch: int, context: int, steps: int) -> None:
        self.batch, self._context, self._done = batch, context, 0
        self._blocks = -(-(context + steps) // BLOCK_TOKENS)
        size_bytes = batch * self._blocks * slot_bytes(model.config, BLOCK_TOKENS, model.dtype)
        memory = torch.empty(size_bytes, dtype=torch.uint8, device=model.device.place)
        memory.view(model.dtype).fill_(_VALUE)
        layout = model.device.backend.layout
        pool = KvPool(model.config, batch * self._blocks, BLOCK_TOKENS, model.dtype, memory, layout)
        self.runner = StepRunner(model, pool, NoPeers())

    def step(self) -> None:
        """One token for every sequence; returns when they are known."""
        self.runner.run(self.next_step())

    def next_step(self) -> Step:
        """What `step` runs. The one before has to be run."""
        at = self._context + self._done
        seqs = tuple(
            SeqStep(
                request_id=str(index),
                attempt=0,
                version=0,
                start=at,
                end=at + 1,
                tokens=b"" if self._done else pack(array("i", [index])),
                local=(Run(0, index * self._blocks, at // BLOCK_TOKENS + 1),),
                sample=GREEDY,
            )
            for index in range(self.batch)
        )
        self._done += 1
        return Step(step_id=self._done, seqs=seqs)

    @property
    def graphs(self) -> str:
        """What became of captured graphs, in words."""
        return self.runner.graphs

    @property
    def context(self) -> int:
        """Tokens behind each sequence now."""
        return self._context + self._done
