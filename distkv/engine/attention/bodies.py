"""Bodies of tensor-link frames: tensors as raw little-endian bytes, without copies where possible."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from distkv.errors import MalformedMessage
from distkv.kernels import Partial
from distkv.wire.messages.data import OutDtype

OUT_DTYPES: dict[OutDtype, torch.dtype] = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def out_dtype_of(model: torch.dtype) -> OutDtype:
    """In which partials of a model of this dtype may travel. One that rounds attention to bfloat16 anyway is off by as
    much again at most; the tokens of any other are to be those of one instance."""
    return "bfloat16" if model == torch.bfloat16 else "float32"


def body_of(tensor: Tensor) -> memoryview:
    """The bytes of a CPU tensor, as one flat view; it keeps the memory alive. Copies only if not contiguous."""
    flat = tensor.detach().contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().data


def tensor_of(body: bytes | bytearray | memoryview, dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
    """The tensor whose bytes `body` is. Shares memory with a writable, aligned body, else copies.

    Raises MalformedMessage when the size is another one.
    """
    expected_bytes = math.prod(shape) * dtype.itemsize
    view = memoryview(body)
    if view.nbytes != expected_bytes:
        raise MalformedMessage(
            f"a body of {dtype} {list(shape)} has {expected_bytes} bytes, this one has {view.nbytes}"
        )
    if expected_bytes == 0:
        return torch.empty(shape, dtype=dtype)
    flat = torch.frombuffer(bytearray(view) if view.readonly else view, dtype=torch.uint8)
    if flat.data_ptr() % dtype.itemsize:
        flat = flat.clone()
    return flat.view(dtype).view(shape)


def partial_of(body: bytes | bytearray | memoryview, out_dtype: OutDtype, rows: int, heads: int, dim: int) -> Partial:
    """The partials of `Partials`: out [rows, heads, dim] as it came, lse float32 [rows, heads]; as `tensor_of` else.

    dim is even, as that of any model with rotary embeddings. Raises MalformedMessage.
    """
    out_bytes = rows * heads * dim * OUT_DTYPES[out_dtype].itemsize
    flat = tensor_of(body, torch.uint8, (out_bytes + rows * heads * 4,))
    if flat.data_ptr() % 4:
        flat = flat.clone()
    out, lse = flat[:out_bytes].view(OUT_DTYPES[out_dtype]), flat[out_bytes:].view(torch.float32)
    return out.view(rows, heads, dim), lse.view(rows, heads)
