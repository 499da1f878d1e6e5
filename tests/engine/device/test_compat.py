"""What workers must have in common: every difference shows in the hash, and in words."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from distkv.engine.device.compat import Compat
from distkv.engine.model.config import ModelConfig
from distkv.kernels import PanelKv, RowKv
from distkv.wire.messages.common import PROTOCOL_VERSION
from tests.checkpoints import variant

FIELDS = {
    "fingerprint": "0123456789abcdef",
    "dtype": torch.float32,
    "block_tokens": 16,
    "layout": PanelKv,
    "kv_dtype": torch.float32,
}


@pytest.fixture
def config(tmp_path: Path) -> ModelConfig:
    return ModelConfig.from_dir(variant(tmp_path / "one", "llama", text_for_tokenizer=None))


def test_in_words(config: ModelConfig) -> None:
    words = Compat.of(config, **FIELDS | {"dtype": torch.bfloat16, "kv_dtype": torch.float8_e4m3fn}).words
    assert words.startswith(f"model {config.model_type}/") and len(words) < 256
    assert words.endswith(
        ", weights 01234567, dtype bfloat16, KV dtype float8_e4m3fn, block size 16, "
        f"layout {PanelKv.name}, protocol {PROTOCOL_VERSION}"
    )


@pytest.mark.parametrize(
    "other",
    [
        {"fingerprint": "1123456789abcdef"},
        {"dtype": torch.bfloat16},
        {"block_tokens": 32},
        {"layout": RowKv},
        {"kv_dtype": torch.float8_e4m3fn},
    ],
    ids=lambda other: next(iter(other)),
)
def test_every_difference_shows(config: ModelConfig, other: dict[str, object]) -> None:
    one, another = Compat.of(config, **FIELDS), Compat.of(config, **FIELDS | other)
    assert one == Compat.of(config, **FIELDS) and len(one.hash) == 32
    assert one.hash != another.hash and one.words != another.words


def test_another_model_shows(tmp_path: Path, config: ModelConfig) -> None:
    other = ModelConfig.from_dir(variant(tmp_path / "other", "mistral-window", text_for_tokenizer=None))
    one, another = Compat.of(config, **FIELDS), Compat.of(other, **FIELDS)
    assert one.hash != another.hash and one.words != another.words
