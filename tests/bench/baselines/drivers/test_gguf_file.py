from __future__ import annotations

import json
import sys
import types
from collections import defaultdict

import numpy as np
import pytest

from distkv.bench.baselines.checkpoints import MODELS, checkpoint
from distkv.bench.baselines.drivers.gguf_file import gguf_name, interleaved, tensors, write_gguf

TINY = MODELS["tiny"]


def rotated(x, angles, neighbours):
    """One head turned by rotary embedding: pairs are neighbours, or the halves of the head."""
    first, second = (x[0::2], x[1::2]) if neighbours else np.split(x, 2)
    return np.array(
        [first * np.cos(angles) - second * np.sin(angles), first * np.sin(angles) + second * np.cos(angles)]
    )


def test_rows_are_ordered_for_the_rotation_of_llama_cpp():
    draw = np.random.default_rng(0)
    weights, x, angles = draw.normal(size=(2 * 8, 5)), draw.normal(size=5), np.arange(4.0)
    theirs = interleaved(weights, 2)
    for head in range(2):
        rows = slice(8 * head, 8 * head + 8)
        expected = rotated(weights[rows] @ x, angles, neighbours=False)
        assert rotated(theirs[rows] @ x, angles, neighbours=True) == pytest.approx(expected)


def test_names():
    assert gguf_name("model.layers.11.self_attn.o_proj.weight") == "blk.11.attn_output"
    assert gguf_name("model.embed_tokens.weight") == "token_embd"
    with pytest.raises(KeyError):
        gguf_name("model.layers.0.self_attn.q_norm.weight")


def test_the_file_has_every_tensor_and_the_shape_of_the_model(tmp_path, monkeypatch):
    model = checkpoint(TINY, tmp_path)
    facts: dict[str, object] = defaultdict(list)
    written: dict[str, tuple[tuple[int, ...], object]] = {}

    class Writer:
        def __init__(self, path, architecture):
            self.path = path
            facts["architecture"] = architecture

        def __getattr__(self, name):
            return lambda value=None: facts.__setitem__(name.removeprefix("add_"), value)

        def add_tensor(self, name, values, raw_dtype=None):
            written[name] = (values.shape, raw_dtype)

        def close(self):
            self.path.write_bytes(b"GGUF")

    gguf = types.SimpleNamespace(
        GGUFWriter=Writer,
        GGMLQuantizationType=types.SimpleNamespace(BF16="bf16", F16="f16"),
        quants=types.SimpleNamespace(quantize=lambda values, kind: values),
    )
    monkeypatch.setitem(sys.modules, "gguf", gguf)
    path = write_gguf(model, "bf16")
    assert path.read_bytes() == b"GGUF" and write_gguf(model, "bf16") == path
    config = json.loads((model / "config.json").read_text())
    assert facts["architecture"] == "llama" and facts["tokenizer_model"] == "no_vocab"
    assert facts["head_count_kv"] == TINY.kv_heads and facts["feed_forward_length"] == TINY.inner
    assert facts["rope_freq_base"] == config["rope_parameters"]["rope_theta"]
    assert len(written) == 3 + 9 * TINY.layers
    assert written["blk.1.attn_k.weight"] == ((64, 128), "bf16")
    assert written["blk.1.attn_norm.weight"] == ((128,), None)
    assert sum(int(np.prod(shape)) for shape, _ in written.values()) == TINY.parameters


def test_values_are_read_as_they_are(tmp_path):
    torch = pytest.importorskip("torch")
    save_file = pytest.importorskip("safetensors.torch").save_file
    values = {"a": torch.tensor([[1.5, -2.0]], dtype=torch.bfloat16), "b": torch.tensor([0.1])}
    save_file(values, tmp_path / "f")
    read = dict(tensors(tmp_path / "f"))
    assert read["a"].tolist() == [[1.5, -2.0]] and read["b"].tolist() == values["b"].tolist()
    save_file({"a": torch.zeros(1, dtype=torch.float16)}, tmp_path / "f")
    with pytest.raises(ValueError, match="F16, expected BF16 or F32"):
        list(tensors(tmp_path / "f"))
