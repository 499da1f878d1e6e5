"""Weights from safetensors files, single or sharded, fused for fewer and larger products and made ready for them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import torch
import xxhash
from safetensors import SafetensorError, safe_open
from torch import Tensor

from distkv.engine.device.cpu import CpuDevice
from distkv.engine.device.device import Device
from distkv.engine.model.config import ModelConfig
from distkv.errors import CheckpointError
from distkv.git_lfs import refuse_pointer
from distkv.kernels.layer.linear import Linear, MakeLinear

SERVING_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}

_STORED_DTYPES = (*SERVING_DTYPES.values(), torch.float64)
_SINGLE, _INDEX = "model.safetensors", "model.safetensors.index.json"
_SAMPLES, _SAMPLE_BYTES = 4, 1 << 14


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """One decoder layer.

    qkv: query, key and value projections, one below the other. gate_up: likewise. q_norm, k_norm: [D], of each head.
    """

    attention_norm: Tensor
    qkv: Linear
    o: Linear
    mlp_norm: Tensor
    gate_up: Linear
    down: Linear
    q_norm: Tensor | None
    k_norm: Tensor | None


@dataclass(frozen=True, slots=True)
class Weights:
    """A whole model in one dtype. lm_head is made of embed when they are tied."""

    embed: Tensor
    layers: tuple[LayerWeights, ...]
    norm: Tensor
    lm_head: Linear


def load_weights(
    model_dir: str | Path, config: ModelConfig, dtype: str = "auto", device: Device | None = None
) -> Weights:
    """Read all weights onto the device and convert them to the serving dtype: "float32", "bfloat16", "float16", or
    "auto", the checkpoint's. device: the CPU by default.

    Raises CheckpointError saying what was expected."""
    device = device or CpuDevice()
    with ExitStack() as stack:
        source = _Source(Path(model_dir), stack, device.place)
        wanted = source.dtype(config) if dtype == "auto" else SERVING_DTYPES.get(dtype)
        if wanted is None:
            expected = ", ".join(SERVING_DTYPES)
            raise CheckpointError(str(model_dir), f"cannot serve in {dtype!r}; expected auto or one of {expected}")
        return _Loader(source, config, wanted, device.backend.linear).load()


def fingerprint(model_dir: str | Path) -> str:
    """Tells checkpoints apart without reading them whole: hex hash of names, sizes and headers of all weight files, and
    of samples of every tensor, its beginning and its end among them. Raises CheckpointError."""
    path = Path(model_dir)
    digest = xxhash.xxh3_128()
    for file in sorted({path / name for name in _files(path).values()} or {path / _SINGLE}):
        try:
            size = file.stat().st_size
            digest.update(f"{file.name}:{size};".encode())
            with file.open("rb") as stream:
                header_bytes = int.from_bytes(stream.read(8), "little")
                header = stream.read(min(header_bytes, size))
                digest.update(header)
                for first, end in _extents(header):
                    for sample in range(_SAMPLES):
                        stream.seek(
                            8 + header_bytes + first + max(0, end - first - _SAMPLE_BYTES) * sample // (_SAMPLES - 1)
                        )
                        digest.update(stream.read(_SAMPLE_BYTES))
        except OSError as error:
            raise CheckpointError(str(file), f"cannot be read: {error.strerror}") from error
        except (msgspec.MsgspecError, UnicodeDecodeError, KeyError) as error:
            raise CheckpointError(str(file), f"cannot be read as safetensors: {error}") from error
    return digest.hexdigest()


def _extents(header: bytes) -> list[tuple[int, int]]:
    """Of the tensors of a safetensors file, counted from the end of its header."""
    tensors = msgspec.json.decode(header, type=dict[str, dict[str, Any]])
    return [
        msgspec.convert(one["data_offsets"], tuple[int, int]) for name, one in tensors.items() if name != "__metadata__"
    ]


def _files(path: Path) -> dict[str, str]:
    """Which file holds which tensor, of a sharded checkpoint; empty for a single file."""
    index = path / _INDEX
    if (path / _SINGLE).exists() or not index.exists():
        return {}
    try:
        weight_map = msgspec.json.decode(index.read_bytes(), type=dict[str, Any])["weight_map"]
        return msgspec.convert(weight_map, dict[str, str])
    except (OSError, KeyError, UnicodeDecodeError, msgspec.MsgspecError) as error:
        raise CheckpointError(str(index), f"is no index of safetensors files: {error}") from error


class _Source:
    """Tensors by name, from open files, on a device."""

    def __init__(self, path: Path, stack: ExitStack, device: torch.device) -> None:
        self.path, self.device = path, device
        names = _files(path)
        if not names and not (path / _SINGLE).exists():
            why = ""
            if any(path.glob("pytorch_model*.bin")):
                why = "; pytorch_model.bin is not read because loading it can run code, convert it first"
            elif any(path.glob("*.gguf")):
                why = "; GGUF files are not read, take the checkpoint that they were made of"
            raise CheckpointError(str(path), f"expected {_SINGLE} or {_INDEX}{why}")
        self._handles = {name: self._open(path / name, stack) for name in sorted(set(names.values()) or {_SINGLE})}
        self._places = names or dict.fromkeys(self._handles[_SINGLE].keys(), _SINGLE)

    def _open(self, file: Path, stack: ExitStack) -> Any:
        try:
            refuse_pointer(file)  # first: safetensors says of every file that it cannot open that it is not there
            return stack.enter_context(safe_open(file, framework="pt", device=str(self.device)))
        except OSError as error:
            raise CheckpointError(str(file), f"cannot be read: {error.strerror or error}") from error
        except SafetensorError as error:
            raise CheckpointError(str(file), f"cannot be read as safetensors: {error}") from error

    def dtype(self, config: ModelConfig) -> torch.dtype:
        """What config.json says, else what the embedding is stored in; must be one we serve in."""
        name = config.dtype or str(self.read(self.embeddings(config)[0]).dtype).removeprefix("torch.")
        if name not in SERVING_DTYPES:
            raise CheckpointError(str(self.path), f"weights in {name}; expected one of {', '.join(SERVING_DTYPES)}")
        return SERVING_DTYPES[name]

    def embeddings(self, config: ModelConfig) -> list[str]:
        """The tensors that are the embedding: of a tied model the two are one, whichever is stored."""
        names = ["model.embed_tokens.weight", "lm_head.weight"]
        return [name for name in names if name in self._places] or names[:1] if config.tied else names[:1]

    def shape(self, name: str) -> list[int]:
        """Of a tensor that is not read."""
        with self._opened(name) as file:
            return list(file.get_slice(name).get_shape())

    def read(self, name: str) -> Tensor:
        with self._opened(name) as file:
            tensor: Tensor = file.get_tensor(name)
        if tensor.dtype not in _STORED_DTYPES:
            where = str(self.path / self._places[name])
            raise CheckpointError(where, f"tensor {name} is stored as {tensor.dtype}, not as floats")
        return tensor

    @contextmanager
    def _opened(self, name: str) -> Iterator[Any]:
        """The file that a tensor is read from in this block."""
        place = self._places.get(name)
        if place is None:
            raise CheckpointError(str(self.path), f"tensor {name} is missing")
        try:
            yield self._handles[place]
        except SafetensorError as error:
            raise CheckpointError(str(self.path / place), f"tensor {name} cannot be read: {error}") from error


class _Loader:
    """Reads one matrix at a time, so that none but the last is there in two orders."""

    def __init__(self, source: _Source, config: ModelConfig, dtype: torch.dtype, make_linear: MakeLinear) -> None:
        self._source, self._config, self._dtype, self._make_linear = source, config, dtype, make_linear

    def load(self) -> Weights:
        config = self._config
        embed = self._embed()
        return Weights(
            embed=embed,
            layers=tuple(self._layer(f"model.layers.{index}") for index in range(config.num_layers)),
            norm=self._vector("model.norm.weight", config.hidden_size),
            lm_head=self._make_linear(embed, None)
            if config.tied
            else self._linear([("lm_head", config.vocab_size)], config.hidden_size),
        )

    def _embed(self) -> Tensor:
        config, names = self._config, self._source.embeddings(self._config)
        found = [self._stack([(name, config.vocab_size)], config.hidden_size) for name in names]
        if not torch.equal(found[0], found[-1]):
            raise CheckpointError(
                str(self._source.path),
                f"config.json says tie_word_embeddings, and {' and '.join(names)} differ; expected one of the two, or "
                "tie_word_embeddings false",
            )
        return found[0]

    def _layer(self, prefix: str) -> LayerWeights:
        config = self._config
        hidden, inner = config.hidden_size, config.intermediate_size
        heads = config.heads
        q_size, kv_size = heads.queries * heads.dim, heads.keys * heads.dim
        qkv = [
            (f"{prefix}.self_attn.{name}_proj", size) for name, size in (("q", q_size), ("k", kv_size), ("v", kv_size))
        ]
        gate_up = [(f"{prefix}.mlp.{name}_proj", inner) for name in ("gate", "up")]
        return LayerWeights(
            attention_norm=self._vector(f"{prefix}.input_layernorm.weight", hidden),
            qkv=self._linear(qkv, hidden, config.qkv_bias),
            o=self._linear([(f"{prefix}.self_attn.o_proj", hidden)], q_size, config.o_bias),
            mlp_norm=self._vector(f"{prefix}.post_attention_layernorm.weight", hidden),
            gate_up=self._linear(gate_up, hidden, config.mlp_bias),
            down=self._linear([(f"{prefix}.mlp.down_proj", hidden)], inner, config.mlp_bias),
            q_norm=self._vector(f"{prefix}.self_attn.q_norm.weight", config.head_dim) if config.qk_norm else None,
            k_norm=self._vector(f"{prefix}.self_attn.k_norm.weight", config.head_dim) if config.qk_norm else None,
        )

    def _linear(self, parts: list[tuple[str, int]], width: int, biased: bool = False) -> Linear:
        """Projections of `width` numbers, one below the other."""
        weight = self._stack([(f"{name}.weight", rows) for name, rows in parts], width)
        bias = self._stack([(f"{name}.bias", rows) for name, rows in parts]) if biased else None
        return self._make_linear(weight, bias)

    def _vector(self, name: str, size: int) -> Tensor:
        return self._stack([(name, size)])

    def _stack(self, parts: list[tuple[str, int]], *width: int) -> Tensor:
        """Tensors of `rows` rows each, one below the other, converted one at a time."""
        # First, for sizes of config.json that are not theirs may be more than there is memory for.
        for name, rows in parts:
            if (shape := self._source.shape(name)) != (expected := [rows, *width]):
                raise CheckpointError(str(self._source.path), f"tensor {name} should be {expected}, is {shape}")
        rows_in_all = sum(rows for _, rows in parts)
        fused = torch.empty(rows_in_all, *width, dtype=self._dtype, device=self._source.device)
        start = 0
        for name, rows in parts:
            fused[start : start + rows] = self._source.read(name)
            start += rows
        return fused
