from __future__ import annotations

import mmap
from pathlib import Path

import pytest
import torch

from distkv.engine.device.pool import KvPool, slot_bytes
from distkv.engine.model.config import ModelConfig
from tests.checkpoints import variant


@pytest.fixture
def config(tmp_path: Path) -> ModelConfig:
    return ModelConfig.from_dir(variant(tmp_path, "llama", text_for_tokenizer=None))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_layout(config: ModelConfig, dtype: torch.dtype) -> None:
    """[slot][layer][K|V][Hkv][P·D], one byte range for each slot."""
    memory = mmap.mmap(-1, 5 * slot_bytes(config, 4, dtype))
    pool = KvPool(config, 5, 4, dtype, memory)
    kv = pool.layer(1)
    token = torch.arange(2 * 16).view(1, 2, 16).to(dtype)
    kv.write(torch.tensor([3]), torch.tensor([2]), -token, token)
    pair = 4 // dtype.itemsize
    for half, sign in ((0, -1), (1, 1)):
        start = 3 * pool.slot_bytes + ((1 * 2 + half) * 2 + 1) * 4 * 16 * dtype.itemsize  # of KV head 1
        raw = bytearray(memory[start : start + 4 * 16 * dtype.itemsize])
        panel = torch.frombuffer(raw, dtype=dtype)
        if half == 0:
            stored = panel.view(16 // pair, 4, pair)[:, 2].flatten()
        else:
            stored = panel.view(4 // pair, 16, pair)[2 // pair, :, 2 % pair]
        assert torch.equal(stored, sign * token[0, 1])
        assert bytes(pool.slot(3)[start - 3 * pool.slot_bytes :][: len(raw)]) == raw


def test_slots_outside_and_buffers_too_small(config: ModelConfig) -> None:
    pool = KvPool(config, 2, 4, torch.float32)
    for slot in (-1, 2):
        with pytest.raises(IndexError):
            pool.slot(slot)
    with pytest.raises(ValueError, match="needs"):
        KvPool(config, 2, 4, torch.float32, bytearray(10))
    with pytest.raises(ValueError, match="writable"):
        KvPool(config, 2, 4, torch.float32, memoryview(bytes(2 * pool.slot_bytes)))
