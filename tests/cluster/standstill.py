"""A process whose main thread stands still, as one does that computes for long; its other threads go on."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager

# linux/ptrace.h, linux/wait.h
_SEIZE, _INTERRUPT, _DETACH = 0x4206, 0x4207, 17
_WAIT_FOR_ANY = 0x40000000
_libc = ctypes.CDLL(None, use_errno=True)
_libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
_libc.ptrace.restype = ctypes.c_long


@contextmanager
def main_thread_stands_still(pid: int) -> Iterator[None]:
    """Within the block, which stays in one thread. Raises OSError where debugging is not allowed."""
    _ptrace(_SEIZE, pid)
    _ptrace(_INTERRUPT, pid)
    os.waitpid(pid, _WAIT_FOR_ANY)
    try:
        yield
    finally:
        _ptrace(_DETACH, pid)


def _ptrace(request: int, pid: int) -> None:
    if _libc.ptrace(request, pid, None, None):
        error = ctypes.get_errno()
        raise OSError(error, f"ptrace: {os.strerror(error)}")
