from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from distkv.engine.model.config import ModelConfig
from distkv.engine.model.weights import fingerprint, load_weights
from distkv.errors import CheckpointError
from tests.checkpoints import edit_config, variant


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return variant(tmp_path, "llama", text_for_tokenizer=None)


def load(path: Path, dtype: str = "auto") -> torch.dtype:
    return load_weights(path, ModelConfig.from_dir(path), dtype).embed.dtype


def rewrite(path: Path, **changes: torch.Tensor | None) -> None:
    tensors = {**load_file(path / "model.safetensors"), **changes}
    save_file({name: tensor for name, tensor in tensors.items() if tensor is not None}, path / "model.safetensors")


@pytest.mark.parametrize(
    ("stored", "wanted", "served"),
    [
        ("float32", "auto", torch.float32),
        ("bfloat16", "auto", torch.bfloat16),
        ("float16", "float32", torch.float32),
        ("bfloat16", "float16", torch.float16),
    ],
)
def test_dtypes(tmp_path: Path, stored: str, wanted: str, served: torch.dtype) -> None:
    path = variant(tmp_path, "llama", dtype=stored, text_for_tokenizer=None)
    assert load(path, wanted) == served


def test_auto_without_a_dtype_in_config_is_what_is_stored(tmp_path: Path) -> None:
    path = variant(tmp_path, "llama", dtype="bfloat16", text_for_tokenizer=None)
    edit_config(path, lambda raw: raw.pop("dtype"))
    assert load(path) == torch.bfloat16


def test_an_unknown_serving_dtype(path: Path) -> None:
    with pytest.raises(CheckpointError, match="cannot serve in 'int8'; expected auto or one of float32"):
        load(path, "int8")


def test_a_missing_tensor(path: Path) -> None:
    rewrite(path, **{"model.layers.1.mlp.up_proj.weight": None})
    with pytest.raises(CheckpointError, match=r"tensor model\.layers\.1\.mlp\.up_proj\.weight is missing"):
        load(path)


def test_untied_weights_need_a_head(path: Path) -> None:
    rewrite(path, **{"lm_head.weight": None})
    with pytest.raises(CheckpointError, match=r"lm_head\.weight is missing"):
        load(path)
    edit_config(path, lambda raw: raw.update(tie_word_embeddings=True))
    weights = load_weights(path, ModelConfig.from_dir(path))
    x = torch.randn(3, 64)
    torch.testing.assert_close(weights.lm_head(x), x @ weights.embed.T)


def test_tied_weights_are_one_whichever_is_stored(path: Path) -> None:
    """transformers takes one that differs for the head, others the embedding: nobody can tell what was meant."""
    edit_config(path, lambda raw: raw.update(tie_word_embeddings=True))
    with pytest.raises(
        CheckpointError, match=r"embed_tokens\.weight and lm_head\.weight differ; expected one of the two"
    ):
        load(path)
    head = load_file(path / "model.safetensors")["lm_head.weight"]
    rewrite(path, **{"model.embed_tokens.weight": head.clone()})
    load(path)
    rewrite(path, **{"model.embed_tokens.weight": None})
    assert torch.equal(load_weights(path, ModelConfig.from_dir(path)).embed, head)
    edit_config(path, lambda raw: raw.pop("dtype"))
    assert load(path) == head.dtype


def test_a_wrong_shape(path: Path) -> None:
    rewrite(path, **{"model.layers.0.self_attn.k_proj.weight": torch.zeros(64, 64)})
    with pytest.raises(CheckpointError, match=r"k_proj\.weight should be \[32, 64\], is \[64, 64\]"):
        load(path)


@pytest.mark.parametrize("size", [2**40, 2**70])
@pytest.mark.parametrize("name", ["vocab_size", "intermediate_size", "head_dim"])
def test_sizes_that_nothing_has_memory_for(path: Path, name: str, size: int) -> None:
    edit_config(path, lambda raw: raw.update({name: size}))
    with pytest.raises(CheckpointError, match=r"should be \[.*\d{13}.*\], is \["):
        load(path)


def test_weights_that_are_no_floats(path: Path) -> None:
    rewrite(path, **{"model.norm.weight": torch.ones(64, dtype=torch.int8)})
    with pytest.raises(CheckpointError, match=r"model\.norm\.weight is stored as torch\.int8, not as floats"):
        load(path)


def test_pickled_weights_are_not_read(path: Path) -> None:
    (path / "model.safetensors").rename(path / "pytorch_model.bin")
    with pytest.raises(CheckpointError, match=r"expected model\.safetensors .* pytorch_model\.bin is not read"):
        load(path)


def test_no_weights_at_all(path: Path) -> None:
    (path / "model.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"expected model\.safetensors or model\.safetensors\.index\.json$"):
        load(path)
    (path / "model.gguf").touch()
    with pytest.raises(CheckpointError, match="GGUF files are not read"):
        load(path)


def test_a_broken_file(path: Path) -> None:
    (path / "model.safetensors").write_bytes(b"not safetensors")
    with pytest.raises(CheckpointError, match="cannot be read as safetensors"):
        load(path)
    (path / "model.safetensors").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 9\n")
    with pytest.raises(CheckpointError, match=r"is a pointer of Git LFS .*git lfs pull"):
        load(path)
    (path / "model.safetensors").unlink()
    (path / "model.safetensors").mkdir()
    with pytest.raises(CheckpointError, match="cannot be read: Is a directory"):
        load(path)


def test_a_missing_shard_and_a_broken_index(tmp_path: Path) -> None:
    path = variant(tmp_path, "llama-yarn-sharded", text_for_tokenizer=None)
    index = path / "model.safetensors.index.json"
    shard = json.loads(index.read_text())["weight_map"]["model.norm.weight"]
    (path / shard).unlink()
    with pytest.raises(CheckpointError, match=shard):
        load(path)
    for broken in b"{}", b'{"weight_map": {"\xff": "x"}}':
        index.write_bytes(broken)
        with pytest.raises(CheckpointError, match="is no index of safetensors files"):
            load(path)


@pytest.mark.parametrize("name", ["llama", "llama-yarn-sharded"])
def test_fingerprints_tell_weights_apart_by_their_values(tmp_path: Path, name: str) -> None:
    first = variant(tmp_path / "a", name, text_for_tokenizer=None)
    again = variant(tmp_path / "b", name, text_for_tokenizer=None)
    other = variant(tmp_path / "c", name, seed=1, text_for_tokenizer=None)
    assert fingerprint(first) == fingerprint(again) != fingerprint(other)


@pytest.mark.parametrize("name", ["model.layers.1.mlp.gate_proj.weight", "model.norm.weight"])
def test_fingerprints_tell_one_changed_tensor(path: Path, name: str) -> None:
    """As of a model that was trained further with the rest frozen."""
    before = fingerprint(path)
    rewrite(path, **{name: load_file(path / "model.safetensors")[name] + 1})
    assert fingerprint(path) != before


def test_no_fingerprint_without_weights(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="cannot be read"):
        fingerprint(tmp_path)
    header = b'{"\xff": {"data_offsets": [0, 0]}}'
    (tmp_path / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header)
    with pytest.raises(CheckpointError, match="cannot be read as safetensors"):
        fingerprint(tmp_path)
