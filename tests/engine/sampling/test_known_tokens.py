"""Sampling behind a graph, which has found the likeliest tokens."""

from __future__ import annotations

from array import array
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from distkv.engine.sampling.constraints import Masks
from distkv.engine.step.batch import PlannedSeq
from distkv.wire.messages.counters import Counters
from tests.checkpoints import variant
from tests.engine.harness import GREEDY, Engine, seq_step


class Computed(TorchDispatchMode):
    """Notes what torch computes."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(str(func))
        return func(*args, **(kwargs or {}))


def test_of_greedy_rows_nothing_more_is_computed(tmp_path: Path) -> None:
    """Each operation would be a launch of every decode step; and no thread makes masks of nobody."""
    engine = Engine(variant(tmp_path, "llama"), num_slots=8)
    vocab_size, sample, counters = engine.model.config.vocab_size, engine.runner._sample, Counters()
    planned = [PlannedSeq(seq_step((5,), 0, 1, [0], name=name, sample=GREEDY), array("i", [5])) for name in "ab"]
    nobody: Any = None
    logits, masks = torch.full((2, vocab_size), torch.nan), Masks(vocab_size, (), nobody, counters)
    tokens, checked = torch.tensor([3, 4]), torch.tensor([3, vocab_size])
    assert engine.runner.constraints.begin(planned, counters) is engine.runner.constraints.begin((), counters)
    with Computed() as computed:
        sampled = sample.begin_decodes(planned, logits, (tokens, checked), masks)
    assert computed.names == []
    assert sampled.tokens is tokens, "the next step goes on with them"
    found = sample.finish(planned, sampled, counters)
    assert (found["a"].token, found["a"].is_fault, found["b"].is_fault) == (3, False, True)
