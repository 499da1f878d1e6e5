"""The streams of a GPU: a bounded set, in which those that are captured are nobody else's."""

from __future__ import annotations

import itertools
import threading
from functools import cache

import torch

OWN, SHARED = 8, 8
"""Streams of each kind, and of each urgency. torch has 32 of a priority and gives them out in turn: these and the one
for copies aside are made at once, so they are different ones."""

_URGENT = -1


class CudaStreams:
    """Of one GPU in this process; any thread may ask. aside: for copies beside a stream that goes on."""

    def __init__(self, place: torch.device) -> None:
        def make(count: int, priority: int) -> list[torch.cuda.Stream]:
            return [torch.cuda.Stream(place, priority=priority) for _ in range(count)]  # type: ignore[no-untyped-call]

        self._place, self._lock = place, threading.Lock()
        (self.aside,) = make(1, 0)
        self._own = itertools.cycle(make(OWN, 0))
        self._shared = {False: itertools.cycle(make(SHARED, 0)), True: itertools.cycle(make(SHARED, _URGENT))}

    def own(self) -> torch.cuda.Stream:
        """One that is never shared: the one after OWN others is the first again."""
        return self._after_here(self._own)

    def shared(self, *, urgent: bool) -> torch.cuda.Stream:
        """One that others may have too, and `own` never gives."""
        return self._after_here(self._shared[urgent])

    def _after_here(self, streams: itertools.cycle[torch.cuda.Stream]) -> torch.cuda.Stream:
        """The next one; what it does comes after all that the current stream was given."""
        with self._lock:
            stream = next(streams)
        stream.wait_stream(torch.cuda.current_stream(self._place))
        return stream


@cache
def streams_of(place: torch.device) -> CudaStreams:
    """Those of a GPU, the same for all that compute on it."""
    return CudaStreams(place)
