"""The first run of everything a step needs on a GPU, before anybody waits for it: kernels compile, graphs are made."""

from __future__ import annotations

import torch

from distkv.engine.attention.mailbox.ends import warm_up_mail
from distkv.engine.device.pool import KvPool
from distkv.engine.model.decoder import Model
from distkv.engine.step.graphs.decode import SIZES
from distkv.engine.step.runner import StepRunner
from distkv.token_ids import ID_BYTES
from distkv.wire.messages.common import Run
from distkv.wire.messages.counters import Counters
from distkv.wire.messages.to_worker import Sampling, SeqStep, Step

_NAME = "warm-up"
_GREEDY = Sampling(temperature=0.0, top_k=0, top_p=1.0, seed=0)


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
        table = (Run(0, 0, -(-count // pool.block_tokens)),)
        tokens = bytes(count * ID_BYTES)
        seq = SeqStep(
            request_id=_NAME, version=0, attempt=0, start=0, end=count, tokens=tokens, local=table, sample=_GREEDY
        )
        runner.run(Step(step_id=0, seqs=(seq,)))
    runner.capture()
    runner.forget([_NAME])
    runner.counters = Counters()
