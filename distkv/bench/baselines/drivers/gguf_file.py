"""A GGUF file from a Llama checkpoint without a tokenizer: the prompts here are token ids."""

from __future__ import annotations

import importlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def write_gguf(checkpoint: Path, dtype: str) -> Path:
    """The file with matrices in "bf16" or "f16", beside the checkpoint's own; made if it is not there yet."""
    path = checkpoint / f"model-{dtype}.gguf"
    if path.is_file():
        return path
    gguf: Any = importlib.import_module("gguf")
    config = json.loads((checkpoint / "config.json").read_text(encoding="utf-8"))
    part = path.with_suffix(".part")
    kind = {"bf16": gguf.GGMLQuantizationType.BF16, "f16": gguf.GGMLQuantizationType.F16}[dtype]
    writer = gguf.GGUFWriter(part, "llama")
    writer.add_vocab_size(config["vocab_size"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_rope_dimension_count(config["head_dim"])
    writer.add_rope_freq_base(config["rope_parameters"]["rope_theta"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_tokenizer_model("no_vocab")
    heads = {"attn_q": config["num_attention_heads"], "attn_k": config["num_key_value_heads"]}
    for name, values in tensors(checkpoint / "model.safetensors"):
        stem = gguf_name(name)
        if values.ndim == 1:
            writer.add_tensor(f"{stem}.weight", values)
            continue
        if (count := heads.get(stem.rpartition(".")[2])) is not None:
            values = interleaved(values, count)
        writer.add_tensor(f"{stem}.weight", gguf.quants.quantize(values, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return part.rename(path)


def gguf_name(name: str) -> str:
    """ "model.layers.3.mlp.up_proj.weight" → "blk.3.ffn_up". Raises KeyError for what a Llama does not have."""
    stem = name.removesuffix(".weight")
    if stem.startswith("model.layers."):
        index, _, rest = stem.removeprefix("model.layers.").partition(".")
        return f"blk.{index}.{NAMES[rest]}"
    return NAMES[stem]


def interleaved(values: Any, heads: int) -> Any:
    """Rows of a query or key projection for llama.cpp, which turns neighbouring dimensions where the checkpoint turns
    the two halves of a head. values: [heads * dim, hidden]."""
    rows, columns = values.shape
    return values.reshape(heads, 2, rows // heads // 2, columns).swapaxes(1, 2).reshape(rows, columns)


def tensors(path: Path) -> Iterator[tuple[str, Any]]:
    """Names and values (float32) of a safetensors file of bfloat16 or float32."""
    numpy: Any = importlib.import_module("numpy")
    with path.open("rb") as file:
        size = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(size))
        for name, entry in header.items():
            if name == "__metadata__":
                continue
            start, end = entry["data_offsets"]
            file.seek(8 + size + start)
            raw = file.read(end - start)
            if entry["dtype"] == "BF16":
                values = (numpy.frombuffer(raw, "<u2").astype("<u4") << 16).view("<f4")
            elif entry["dtype"] == "F32":
                values = numpy.frombuffer(raw, "<f4")
            else:
                raise ValueError(f"{path}: {name} is {entry['dtype']}, expected BF16 or F32")
            yield name, values.reshape(entry["shape"])
