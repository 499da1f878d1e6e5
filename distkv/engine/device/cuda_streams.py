"""The streams of a GPU: a bounded set, in which those that are captured are nobody else's."""

from __future__ import annotations

import itertools
import threading
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import cache
from weakref import WeakSet

import torch

QUEUES = 32
"""Of the host to a GPU, the most there are: streams that share one wait for each other."""

OWN, SHARED, URGENT = 8, 8, 15
"""Streams that may be captured, that are shared, and that are shared and urgent: with the one for copies aside no more
than there are queues. torch has 32 of a priority and gives them out in turn: these are made at once, so they are
different ones."""

_URGENT = -1


class CudaStreams:
    """Of one GPU in this process; any thread may ask. aside: for copies beside a stream that goes on."""

    def __init__(self, place: torch.device) -> None:
        def make(count: int, priority: int) -> list[torch.cuda.Stream]:
            return [torch.cuda.Stream(place, priority=priority) for _ in range(count)]  # type: ignore[no-untyped-call]

        self._place, self._lock = place, threading.Lock()
        (self.aside,) = make(1, 0)
        self._own = itertools.cycle(make(OWN, 0))
        self._shared = {False: list(map(_Shared, make(SHARED, 0))), True: list(map(_Shared, make(URGENT, _URGENT)))}

    def own(self) -> AbstractContextManager[object]:
        """One that is never shared: the one after OWN others is the first again."""
        with self._lock:
            return self._after_here(next(self._own))

    def shared(self, *, urgent: bool) -> AbstractContextManager[object]:
        """One that others may have too, and `own` never gives: whoever keeps what this returns has it, and it is one of
        those that fewest have."""
        with self._lock:
            open_ = [one for one in self._shared[urgent] if not one.keeper]
            found = min(open_, key=lambda one: len(one.users))
            found.users.add(context := self._after_here(found.stream))
        return context

    def keep(self, context: AbstractContextManager[object]) -> bool:
        """Nobody else gets the stream of what `shared` returned, urgent, as long as that is kept. False where somebody
        has it already, or it is the last one that others may have."""
        with self._lock:
            found = next((one for one in self._shared[True] if set(one.users) == {context}), None)
            others = [one for one in self._shared[True] if one is not found and not one.keeper]
            if found is None or not others:
                return False
            found.keeper.add(context)
        return True

    def _after_here(self, stream: torch.cuda.Stream) -> _StreamContext:
        """What it does comes after all that the current stream was given."""
        stream.wait_stream(torch.cuda.current_stream(self._place))
        return _StreamContext(stream)


class _StreamContext(torch.cuda.StreamContext):
    """The thread's current device is the stream's from then on. torch goes back to the stream of the device before,
    which is the first GPU if nobody says otherwise, and CUDA makes a context there, of hundreds of megabytes."""

    def __enter__(self) -> None:
        assert self.stream is not None
        torch.cuda.set_device(self.stream.device)
        super().__enter__()  # type: ignore[no-untyped-call]


@dataclass(slots=True)
class _Shared:
    """users: as long as they are kept. keeper: the only user, if nobody else is to come."""

    stream: torch.cuda.Stream
    users: WeakSet[AbstractContextManager[object]] = field(default_factory=WeakSet)
    keeper: WeakSet[AbstractContextManager[object]] = field(default_factory=WeakSet)


@cache
def streams_of(place: torch.device) -> CudaStreams:
    """Those of a GPU, the same for all that compute on it."""
    return CudaStreams(place)
