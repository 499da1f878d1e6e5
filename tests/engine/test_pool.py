from __future__ import annotations

import mmap
from pathlib import Path

import pytest
import torch
import xxhash

from distkv.engine.config import ModelConfig
from distkv.engine.pool import KvPool, compat_hash, slot_bytes
from tests.checkpoints import variant


@pytest.fixture
def config(tmp_path: Path) -> ModelConfig:
    return ModelConfig.from_dir(variant(tmp_path, "llama", text_for_tokenizer=None))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_layout(config: ModelConfig, dtype: torch.dtype) -> None:
    """[slot][layer][K|V][Hkv][P][D], one byte range for each slot."""
    memory = mmap.mmap(-1, 5 * slot_bytes(config, 4, dtype))
    pool = KvPool(config, 5, 4, dtype, memory)
    k, v = pool.layer(1)
    assert k.shape == v.shape == (5, 2, 4, 16)
    v[3, 1, 2] = torch.arange(16)
    start = 3 * pool.slot_bytes
    place = ((((1 * 2 + 1) * 2 + 1) * 4) + 2) * 16 * dtype.itemsize
    raw = memory[start + place : start + place + 16 * dtype.itemsize]
    assert torch.equal(torch.frombuffer(bytearray(raw), dtype=dtype), torch.arange(16).to(dtype))
    assert bytes(pool.slot_bytes_view(3)[place : place + len(raw)]) == raw
    assert pool.checksum(3) == xxhash.xxh3_64_intdigest(memory[start : start + pool.slot_bytes])


def test_slots_outside_and_buffers_too_small(config: ModelConfig) -> None:
    pool = KvPool(config, 2, 4, torch.float32)
    for slot in (-1, 2):
        with pytest.raises(IndexError):
            pool.slot_bytes_view(slot)
    with pytest.raises(ValueError, match="needs"):
        KvPool(config, 2, 4, torch.float32, bytearray(10))
    with pytest.raises(ValueError, match="writable"):
        KvPool(config, 2, 4, torch.float32, memoryview(bytes(2 * pool.slot_bytes)))


def test_compatibility_is_model_dtype_and_block_size(tmp_path: Path, config: ModelConfig) -> None:
    base = compat_hash(config, "f", torch.float32, 16)
    assert base == compat_hash(config, "f", torch.float32, 16)
    assert len(base) == 32
    other = ModelConfig.from_dir(variant(tmp_path, "mistral-window", text_for_tokenizer=None))
    assert len({
        base,
        compat_hash(config, "g", torch.float32, 16),
        compat_hash(config, "f", torch.bfloat16, 16),
        compat_hash(config, "f", torch.float32, 32),
        compat_hash(other, "f", torch.float32, 16),
    }) == 5  # fmt: skip
