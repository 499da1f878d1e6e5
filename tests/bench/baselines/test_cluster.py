"""distkv as a contender."""

from __future__ import annotations

from pathlib import Path

import pytest

from distkv.bench.baselines.cases import Case
from distkv.bench.baselines.checkpoints import MODELS, checkpoint
from distkv.bench.baselines.cluster import OneInstance


@pytest.mark.slow
def test_a_batch_decodes_together(tmp_path: Path) -> None:
    """Its prompts gave way to those that decoded: the first had all its tokens before the last had its first."""
    shape, case = MODELS["tiny"], Case("batch", 512, 64, batch=8)
    one = OneInstance(checkpoint(shape, tmp_path), 1, case.kv_tokens)
    try:
        assert case.rate(one.generate(case.prompts(shape.vocab, 0), case.max_tokens)) > 0
        assert len(one.outside(case, shape.vocab, 1)) == 1
    finally:
        one.close()
