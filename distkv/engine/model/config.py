"""What a model is, from a Hugging Face directory. Loads no torch.

Read like transformers reads it, so that an absent key means what it means there.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec

from distkv.engine.model.rope_config import RopeConfig, parse_rope
from distkv.errors import CheckpointError

MAX_POSITIONS = 1 << 31
MAX_LAYERS = 1 << 16
SUPPORTED_MODEL_TYPES = ("llama", "mistral", "qwen2", "qwen3")

_DEFAULTS: dict[str, dict[str, Any]] = {
    "llama": {"max_position_embeddings": 2048, "eos_token_id": 2},
    "mistral": {
        "num_key_value_heads": 8,
        "max_position_embeddings": 131072,
        "sliding_window": 4096,
        "eos_token_id": 2,
    },
    "qwen2": {"num_key_value_heads": 32, "max_position_embeddings": 32768, "sliding_window": 4096},
    "qwen3": {"num_key_value_heads": 32, "max_position_embeddings": 32768, "sliding_window": 4096, "head_dim": 128},
}


@dataclass(frozen=True, slots=True)
class Heads:
    """Attention heads that one worker computes and stores: of queries, of keys and values, and numbers in each."""

    queries: int
    keys: int
    dim: int


@dataclass(frozen=True)
class ModelConfig:
    """A decoder of the Llama family.

    windows: per layer, how many positions back a query sees, itself included; None is all.
    qkv_bias, o_bias, mlp_bias: which projections add a bias. qk_norm: RMS norm of each query and key head.
    dtype: of the checkpoint's weights, "" when config.json does not say. eos_token_ids: ids that end a text.
    """

    model_type: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    max_positions: int
    rms_norm_eps: float
    rope: RopeConfig
    windows: tuple[int | None, ...]
    tied: bool = False
    qkv_bias: bool = False
    o_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    dtype: str = ""
    eos_token_ids: tuple[int, ...] = field(default=())

    @property
    def heads(self) -> Heads:
        """Those of one worker: all of them, for a worker is one rank. Projections, pools, attention and serving have
        their shapes from here."""
        return Heads(self.num_heads, self.num_kv_heads, self.head_dim)

    @property
    def max_model_len(self) -> int:
        """Tokens of the longest text that the model was made for: config.json's number, which means the text before
        scaling where rotary frequencies are scaled linearly, and may for yarn."""
        if self.rope.kind == "linear":
            return int(min(self.max_positions * self.rope.factor, MAX_POSITIONS))
        if self.rope.kind == "yarn":
            return int(min(self.rope.original_max_positions * self.rope.factor, MAX_POSITIONS))
        return self.max_positions

    @property
    def scale(self) -> float:
        """What attention scores are multiplied by."""
        return float(self.head_dim**-0.5)

    @property
    def widest_window(self) -> int | None:
        """The most positions that any layer looks back; None when one sees everything."""
        widths = [window for window in self.windows if window is not None]
        return max(widths) if len(widths) == self.num_layers else None

    def identity(self) -> dict[str, Any]:
        """The fields that decide what a KV cache of this model holds."""
        fields = asdict(self)
        for name in ("dtype", "eos_token_ids", "max_positions", "tied"):
            del fields[name]
        return fields

    @classmethod
    def from_dir(cls, model_dir: str | Path) -> ModelConfig:
        """Read config.json and generation_config.json. Raises CheckpointError."""
        path = Path(model_dir)
        if not path.is_dir():
            raise CheckpointError(str(path), "is not a directory; a local Hugging Face model directory is expected")
        raw = _read_json(path / "config.json")
        generation = _read_json(path / "generation_config.json") if (path / "generation_config.json").exists() else {}
        config = _parse(raw, str(path / "config.json"))
        more = _eos_ids(generation, str(path / "generation_config.json"))
        return replace(config, eos_token_ids=tuple(dict.fromkeys((*config.eos_token_ids, *more))))


def _read_json(path: Path) -> dict[str, Any]:
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
    except OSError as error:
        raise CheckpointError(str(path), f"cannot be read: {error.strerror}") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise CheckpointError(str(path), f"is not a JSON object: {error}") from error


def _parse(raw: dict[str, Any], path: str) -> ModelConfig:
    model_type = raw.get("model_type")
    if model_type not in SUPPORTED_MODEL_TYPES:
        supported = ", ".join(SUPPORTED_MODEL_TYPES)
        raise CheckpointError(path, f"model_type {model_type!r} is not supported; supported are {supported}")
    for key in ("quantization_config", "compression_config"):
        if raw.get(key):
            raise CheckpointError(
                path, f"{key} is not supported; a checkpoint in float32, bfloat16 or float16 is expected"
            )
    settings = _Settings({**_DEFAULTS[model_type], **raw}, path)
    if (act := raw.get("hidden_act", "silu")) != "silu":
        raise CheckpointError(path, f"hidden_act {act!r} is not supported; silu is expected")
    if (causal := raw.get("is_causal", True)) is not True:
        raise CheckpointError(path, f"is_causal {causal!r} is not supported; every token attends to those before it")
    num_heads, hidden_size = settings.size("num_attention_heads"), settings.size("hidden_size")
    num_kv_heads = settings.size("num_key_value_heads", num_heads)
    head_dim = settings.size("head_dim", hidden_size // num_heads)
    if head_dim < 1:
        raise CheckpointError(path, f"{num_heads} heads have no part of {hidden_size} hidden numbers each")
    if num_heads % num_kv_heads:
        raise CheckpointError(path, f"{num_heads} query heads do not share {num_kv_heads} KV heads evenly")
    if head_dim % 2:
        raise CheckpointError(path, f"head_dim {head_dim} is odd; its halves are rotated")
    num_layers, max_positions = settings.size("num_hidden_layers"), settings.size("max_position_embeddings")
    if num_layers > MAX_LAYERS:
        raise CheckpointError(path, f"num_hidden_layers should be at most {MAX_LAYERS}, is {num_layers}")
    if max_positions > MAX_POSITIONS:
        raise CheckpointError(path, f"max_position_embeddings should be at most {MAX_POSITIONS}, is {max_positions}")
    attention_bias = model_type in ("llama", "qwen3") and settings.flag("attention_bias")
    config = ModelConfig(
        model_type=model_type,
        vocab_size=settings.size("vocab_size"),
        hidden_size=hidden_size,
        intermediate_size=settings.size("intermediate_size"),
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        max_positions=max_positions,
        rms_norm_eps=settings.number("rms_norm_eps", 1e-6),
        rope=parse_rope(raw, max_positions, path),
        windows=_windows(settings, model_type, num_layers),
        tied=settings.flag("tie_word_embeddings"),
        qkv_bias=attention_bias or model_type == "qwen2",
        o_bias=attention_bias,
        mlp_bias=model_type == "llama" and settings.flag("mlp_bias"),
        qk_norm=model_type == "qwen3",
        dtype=str(raw.get("dtype") or raw.get("torch_dtype") or "").removeprefix("torch."),
        eos_token_ids=_eos_ids(settings.raw, path),
    )
    if config.max_model_len < 1:
        raise CheckpointError(path, f"rope parameter factor {config.rope.factor:g} leaves no position")
    return config


def _windows(settings: _Settings, model_type: str, num_layers: int) -> tuple[int | None, ...]:
    everywhere: tuple[int | None, ...] = (None,) * num_layers
    if model_type == "llama":
        return everywhere
    window = settings.size("sliding_window", 0) or None
    if model_type != "mistral" and not settings.flag("use_sliding_window"):
        window = None
    kinds = settings.raw.get("layer_types")
    if kinds is None:
        first = 0 if model_type == "mistral" else settings.size("max_window_layers", 28, least=0)
        return tuple(window if layer >= first else None for layer in range(num_layers))
    known = {"full_attention": None, "sliding_attention": window}
    if (
        not isinstance(kinds, list)
        or len(kinds) != num_layers
        or any(not isinstance(kind, str) or kind not in known for kind in kinds)
    ):
        raise CheckpointError(
            settings.path, f"layer_types should name {num_layers} layers, each one of {', '.join(known)}; is {kinds!r}"
        )
    return tuple(known[kind] for kind in kinds)


def _eos_ids(raw: Mapping[str, Any], path: str) -> tuple[int, ...]:
    value = raw.get("eos_token_id")
    values = value if isinstance(value, list) else [] if value is None else [value]
    if any(isinstance(item, bool) or not isinstance(item, int) or item < 0 for item in values):
        raise CheckpointError(path, f"eos_token_id should be token ids, is {value!r}")
    return tuple(dict.fromkeys(values))


class _Settings:
    """The keys of config.json, checked one by one. None counts as absent."""

    def __init__(self, raw: dict[str, Any], path: str) -> None:
        self.raw, self.path = raw, path

    def size(self, name: str, default: int | None = None, least: int = 1) -> int:
        value = self.raw.get(name)
        if value is None and default is not None:
            return default
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise CheckpointError(self.path, f"{name} should be an integer ≥ {least}, is {value!r}")
        return value

    def number(self, name: str, default: float) -> float:
        value = self.raw.get(name)
        value = default if value is None else value
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
            raise CheckpointError(self.path, f"{name} should be a number ≥ 0, is {value!r}")
        return float(value)

    def flag(self, name: str) -> bool:
        value = self.raw.get(name)
        if value is not None and not isinstance(value, bool):
            raise CheckpointError(self.path, f"{name} should be true or false, is {value!r}")
        return bool(value)
