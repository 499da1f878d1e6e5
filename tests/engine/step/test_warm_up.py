"""A warm start: everything is captured before the first step, and nothing of it counts."""

from __future__ import annotations

from pathlib import Path

import torch

from distkv.engine.step.warm_up import warm_up
from distkv.wire.messages.counters import Counters
from tests.checkpoints import prompt_ids
from tests.engine.async_device import AsyncHost
from tests.engine.harness import GREEDY, Engine, seq_step

PROMPT = prompt_ids(50)


def test_a_warm_start_counts_nothing(engine: Engine, device: AsyncHost) -> None:
    warm_up(engine.runner, engine.model, engine.pool)
    pieces = engine.model.config.num_layers + 1
    graphs = 7 * pieces + 7 * 2 + 4 * (2 * pieces - 1)
    assert device.captured == graphs
    assert engine.runner.counters == Counters()
    engine.run(seq_step(PROMPT, 0, 50, engine.table(50), sample=GREEDY))
    assert device.captured == graphs, "nothing is left to capture"


def test_on_the_host_there_is_nothing_to_warm_up(path: Path) -> None:
    engine = Engine(path)
    warm_up(engine.runner, engine.model, engine.pool)
    assert torch.equal(engine.pool.slot(0), torch.full_like(engine.pool.slot(0), 0xFF))
