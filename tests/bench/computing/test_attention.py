"""`distkv bench attention` from the command line, and what it calls."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from distkv.bench.computing import attention
from distkv.bench.workloads.computing.attention import Keys, Shape
from distkv.errors import ConfigError
from distkv.kernels.attention import reference
from distkv.kernels.cpu.dispatch import backend_of
from tests.bench.quick_run import quick_report


def test_all_contenders_compute_the_same_attention() -> None:
    """Each has its own copy of the keys; here they are made the same."""
    keys = Keys(Shape(4, 2, 32), 48)
    slots = torch.tensor(keys.blocks.slots)
    for half, stored in zip(keys.contiguous, (keys.kv.keys(slots), keys.kv.values(slots)), strict=True):
        half.copy_(stored.transpose(0, 1).flatten(1, 2)[None])
    expected, _ = reference.micro_attention(
        keys.queries(48),
        keys.kv.keys(slice(None)),
        keys.kv.values(slice(None)),
        keys.blocks,
        torch.arange(48),
        32**-0.5,
    )
    backend = backend_of()
    ours, _ = keys.ours(backend, 48)()
    close = 5e-3 if backend.name in ("amx", "avx512bf16") else 2e-6  # where weights are rounded to bfloat16, too
    torch.testing.assert_close(ours.double(), expected, atol=close, rtol=close)
    theirs = keys.flash_prefill(torch.float32)()
    torch.testing.assert_close(theirs[0][0].transpose(0, 1).double(), expected, atol=1e-5, rtol=1e-5)  # type: ignore[index]
    last, _ = keys.ours(backend_of(), 1)()
    decoded = keys.flash_decode()()[0].reshape(1, 4, 32)  # type: ignore[index]
    torch.testing.assert_close(last, decoded.float(), atol=2e-2, rtol=2e-2)


@pytest.mark.slow
def test_a_quick_run_says_every_goal(tmp_path: Path) -> None:
    report = quick_report(attention.main, tmp_path)
    assert report["benchmark"] == "attention"
    goals = [goal["goal"] for goal in report["goals"]]
    assert len(goals) == len(set(goals)) == 2 * 4
    assert all(isinstance(goal["met"], bool) for goal in report["goals"])


def test_unknown_levels_are_refused_before_anything_is_measured() -> None:
    with pytest.raises(ConfigError, match="sse9"):
        attention.main.main(["--quick", "--levels", "sse9"], standalone_mode=False)
