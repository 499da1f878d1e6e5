"""Lists of byte views for vectored socket calls."""

from __future__ import annotations

from collections.abc import Sequence

from distkv.wire.links.base import Buffer


def byte_views(buffers: Sequence[Buffer]) -> tuple[list[memoryview], int]:
    """The non-empty buffers as flat byte views, and their size together. TypeError if one is not C-contiguous."""
    views: list[memoryview] = []
    size = 0
    for buffer in buffers:
        view = buffer if type(buffer) is memoryview else memoryview(buffer)
        if count := view.nbytes:
            views.append(view if view.format == "B" and view.ndim == 1 and view.contiguous else view.cast("B"))
            size += count
    return views, size


def advance(views: list[memoryview], count: int) -> None:
    """Drop the first `count` bytes of `views`, in place."""
    whole = 0
    while whole < len(views) and count >= len(views[whole]):
        count -= len(views[whole])
        whole += 1
    del views[:whole]
    if count:
        views[0] = views[0][count:]
