"""A trained network as a Hugging Face directory, and back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer

from distkv.demo.train.network import Network, Shape
from distkv.demo.train.vocabulary import CHAT_TEMPLATE, END

MAX_POSITIONS = 262_144


def export(network: Network, tokenizer: Tokenizer, path: Path) -> None:
    """Write config.json, model.safetensors in bfloat16, tokenizer and generation files for Qwen3ForCausalLM."""
    path.mkdir(parents=True, exist_ok=True)
    shape, end = network.shape, tokenizer.token_to_id(END)
    config = {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "vocab_size": shape.vocab,
        "hidden_size": shape.hidden,
        "intermediate_size": shape.inner,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_dim,
        "hidden_act": "silu",
        "max_position_embeddings": MAX_POSITIONS,
        "rms_norm_eps": shape.eps,
        "rope_parameters": {"rope_type": "default", "rope_theta": shape.rope_theta},
        "use_sliding_window": True,
        "sliding_window": shape.window,
        "max_window_layers": shape.layers,
        "layer_types": [
            "sliding_attention" if index < shape.local_layers else "full_attention" for index in range(shape.layers)
        ],
        "tie_word_embeddings": True,
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": None,
        "eos_token_id": end,
        "pad_token_id": end,
        "dtype": "bfloat16",
    }
    _write_json(path / "config.json", config)
    _write_json(path / "generation_config.json", {"do_sample": False, "eos_token_id": end, "pad_token_id": end})
    _write_json(
        path / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "eos_token": END,
            "pad_token": END,
            "clean_up_tokenization_spaces": False,
            "model_max_length": MAX_POSITIONS,
            "chat_template": CHAT_TEMPLATE,
        },
    )
    tokenizer.save(str(path / "tokenizer.json"))
    weights = {
        f"model.{name}": weight.detach().bfloat16().contiguous() for name, weight in network.state_dict().items()
    }
    save_file(weights, path / "model.safetensors", metadata={"format": "pt"})


def load(path: Path, shape: Shape) -> Network:
    """The network of an exported directory, in float32."""
    network = Network(shape)
    weights = load_file(path / "model.safetensors")
    network.load_state_dict({name.removeprefix("model."): weight.float() for name, weight in weights.items()})
    return network


def _write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_bytes(msgspec.json.format(msgspec.json.encode(value), indent=2) + b"\n")
