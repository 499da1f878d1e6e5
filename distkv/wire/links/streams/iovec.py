"""Lists of byte views for vectored socket calls."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

from distkv.wire.links.base import Buffer
from distkv.wire.links.memory.slot_views import SlotViews


def byte_views(buffers: Sequence[Buffer]) -> tuple[list[memoryview], int]:
    """The non-empty buffers as flat byte views, and their size together. TypeError if one is not C-contiguous.

    SlotViews, which are so already, are told apart at once and not view by view.
    """
    views: list[memoryview] = []
    size = 0
    for buffer in buffers:
        if type(buffer) is SlotViews:
            views += buffer
            size += buffer.nbytes
            continue
        view = buffer if type(buffer) is memoryview else memoryview(buffer)
        if count := view.nbytes:
            views.append(view if view.format == "B" and view.ndim == 1 and view.contiguous else view.cast("B"))
            size += count
    return views, size


def advance(views: list[memoryview], count: int) -> None:
    """Drop the first `count` bytes of `views`, in place."""
    whole = before = 0
    for end in accumulate(map(len, views)):
        if end > count:
            break
        whole, before = whole + 1, end
    del views[:whole]
    if count > before:
        views[0] = views[0][count - before :]
