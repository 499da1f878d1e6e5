"""The first run of everything a step needs on a GPU, before anybody waits for it: kernels compile, graphs are made."""

from __future__ import annotations

from typing import Any

import torch

from distkv.engine.attention.mailbox.ends import warm_up_mail
from distkv.engine.device.pool import KvPool
from distkv.engine.model.decoder import Model
from distkv.engine.step.graphs.decode import SIZES
from distkv.engine.step.runner import StepRunner
from distkv.token_ids import ID_BYTES
from distkv.wire.messages.common import Run
from distkv.wire.messages.counters import Counters
from distkv.wire.messages.to_worker import PromptLogprobs, Sampling, SeqStep, Step

_NAME, _DRAWN_NAME = "warm-up", "warm-up, drawn"
_GREEDY = Sampling(temperature=0.0, top_k=0, top_p=1.0, seed=0)
_DRAWN = Sampling(
    temperature=0.7,
    top_k=2,
    top_p=0.9,
    seed=0,
    min_p=0.01,
    repetition_penalty=1.1,
    presence_penalty=0.1,
    frequency_penalty=0.1,
    logit_bias={0: 0.1},
    logprobs=1,
    allowed_token_ids=(0, 1),
    forbidden_token_ids=(1,),
)
"""All that a draw may have; whatever it is, the same operations follow."""

_STAGED_BYTES, _STAGED_AT_ONCE = tuple(1 << power for power in range(9, 22)), 4
"""Of copies to and from a device. Torch keeps memory for them by powers of 2, and a new piece of it may wait for all
that the device was given: for partials, too, of a creditor that waits for what is to be copied."""


def warm_up(runner: StepRunner, model: Model, pool: KvPool) -> None:
    """Graphs of decodes, steps of all captured sizes and one beyond, over an empty pool, every kernel of attention and
    copies of blocks, where the device is asynchronous: nobody's queries and nobody's step wait for a compiler."""
    device = model.device
    if not device.is_async:
        return
    # First, for graphs are captured with configs of kernels that could be launched.
    with device.stream(), torch.inference_mode():
        layer, config = pool.layer(0), model.config
        device.backend.warm_up(config.num_heads, layer, model.dtype, config.windows)
        block, (first,) = pool.slot(0).view(1, -1), device.to_device(torch.zeros(1, dtype=torch.int64))
        staging = device.backend.gather_blocks(block, first)
        device.backend.scatter_blocks(staging, block, first)
        device.backend.copy_blocks(staging, first, block, first)
        if device.backend.has_checksums(pool.slot_bytes):
            device.backend.checksum_blocks(block, first)
        warm_up_mail(device, config.num_heads, config.head_dim, model.dtype)
        device.synchronize()
    for rows in (*SIZES, 2 * SIZES[-1]):
        count = min(rows, pool.num_slots * pool.block_tokens)
        runner.run(Step(step_id=0, seqs=(_seq(_NAME, count, pool, _GREEDY),)))
    runner.capture()
    _draw(runner, pool)
    staged = [device.host(size) for size in _STAGED_BYTES for _ in range(_STAGED_AT_ONCE)]
    del staged
    runner.forget([_NAME, _DRAWN_NAME])
    runner.counters = Counters()


def _draw(runner: StepRunner, pool: KvPool) -> None:
    """Every operation of sampling, of some rows of a step and of all: CUDA loads those of torch when they are first
    needed, and while it does nothing else may begin."""
    drawn = _seq(_DRAWN_NAME, 1, pool, _DRAWN, history=True)
    runner.run(Step(step_id=0, seqs=(_seq(_NAME, 1, pool, _GREEDY), drawn)))
    runner.run(Step(step_id=0, seqs=(drawn,)))
    if pool.num_slots * pool.block_tokens > 1:
        asked = PromptLogprobs(first=1, token_ids=bytes(ID_BYTES), top=1)
        runner.run(Step(step_id=0, seqs=(_seq(_NAME, 2, pool, _GREEDY, prompt_logprobs=asked),)))


def _seq(name: str, count: int, pool: KvPool, sample: Sampling, **more: Any) -> SeqStep:
    """A prompt in the first blocks of the pool."""
    table = (Run(0, 0, -(-count // pool.block_tokens)),)
    tokens = bytes(count * ID_BYTES)
    return SeqStep(
        request_id=name, version=0, attempt=0, start=0, end=count, tokens=tokens, local=table, sample=sample, **more
    )
