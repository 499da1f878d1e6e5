"""Capture of what a stream of a GPU is given, and the memory that graphs share.

Torch is taken as it is in 2.11: of a capture that CUDA calls off it goes on recording allocations, and a handle of
memory is refused for ever once the last graph that used it is gone.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar
from weakref import WeakSet

import torch

Results = TypeVar("Results")

_failed: list[torch.cuda.CUDAGraph] = []
"""Their captures could not be ended. Torch's allocator of host memory goes on asking them whether they capture, so they
live as long as the process."""


class GraphMemory:
    """Of the graphs of one thread, in groups: those of a group share theirs."""

    def __init__(self) -> None:
        self._groups: dict[int, tuple[Any, WeakSet[torch.cuda.CUDAGraph]]] = {}

    def captured(self, run: Callable[[], Results], group: int = 0) -> tuple[torch.cuda.CUDAGraph, Results]:
        """A graph of `run` in the current stream, which is not the default one, and what it returned. Raises
        RuntimeError, and then nothing is left of the capture."""
        handle, graphs = self._groups.pop(group, (None, WeakSet[torch.cuda.CUDAGraph]()))
        if not graphs:
            handle = torch.cuda.graph_pool_handle()
        graph, results = _captured(run, handle)
        graphs.add(graph)
        self._groups[group] = handle, graphs  # after a failure the next one has another handle
        return graph, results


def _captured(run: Callable[[], Results], handle: Any) -> tuple[torch.cuda.CUDAGraph, Results]:
    graph = torch.cuda.CUDAGraph()
    torch.cuda.current_stream().synchronize()
    # Other threads serve peers meanwhile: only this thread's calls must be fit for capture.
    graph.capture_begin(pool=handle, capture_error_mode="thread_local")
    try:
        results = run()
    except BaseException as error:
        with suppress(RuntimeError):  # it may complain of the same
            _end(graph, handle)
        if not isinstance(error, Exception):
            raise
        raise RuntimeError(f"{type(error).__name__}: {error}") from error
    _end(graph, handle)
    return graph, results


def _end(graph: torch.cuda.CUDAGraph, handle: Any) -> None:
    try:
        graph.capture_end()
    except RuntimeError:
        _failed.append(graph)
        with suppress(RuntimeError):  # it does not record any more: another torch, or a failure behind the capture
            torch._C._cuda_endAllocateToPool(torch.cuda.current_device(), handle)
        raise
