"""Bodies of tensor-link frames: tensors as raw little-endian bytes, without copies where possible."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from distkv.errors import MalformedMessage


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
