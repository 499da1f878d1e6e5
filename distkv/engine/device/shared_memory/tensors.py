"""Memory at an address as a tensor, by DLPack: of any device, without a copy, and without a look at the address."""

from __future__ import annotations

import ctypes
from typing import Any

import torch
from torch import Tensor
from torch.utils.dlpack import from_dlpack

_CPU, _CUDA = 1, 2
_UNSIGNED = 1


class _DlTensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.c_void_p),
        ("strides", ctypes.c_void_p),
        ("byte_offset", ctypes.c_uint64),
    )


class _Managed(ctypes.Structure):
    """DLManagedTensor, and behind it the shape that it points to."""

    _fields_ = (
        ("tensor", _DlTensor),
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("length", ctypes.c_int64),
    )


def tensor_over(address: int, num_bytes: int, place: torch.device) -> Tensor:
    """uint8 [num_bytes] of a device whose kernels reach it; whoever made the memory keeps it for as long as it is used.

    place: the device that the tensor is said to be on, also where the memory is another one's.
    """
    libc: Any = ctypes.CDLL(None)
    libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, (ctypes.c_size_t,)
    # Freed by whoever frees the tensor, in any thread, and without Python.
    block = libc.malloc(ctypes.sizeof(_Managed))
    if not block:
        raise MemoryError
    managed = _Managed.from_address(block)
    ctypes.memset(block, 0, ctypes.sizeof(_Managed))
    managed.length = num_bytes
    managed.deleter = ctypes.cast(libc.free, ctypes.c_void_p)
    managed.tensor = _DlTensor(
        data=address,
        device_type=_CUDA if place.type == "cuda" else _CPU,
        device_id=place.index or 0,
        ndim=1,
        code=_UNSIGNED,
        bits=8,
        lanes=1,
        shape=block + _Managed.length.offset,
    )
    make: Any = ctypes.pythonapi.PyCapsule_New
    make.restype, make.argtypes = ctypes.py_object, (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
    tensor: Tensor = from_dlpack(make(block, b"dltensor", None))
    return tensor
