"""When tokens of a request came."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from typing import overload

import numpy as np

Times = np.ndarray[tuple[int], np.dtype[np.float64]]


class SharedTimes:
    """Of tokens that came together, one for each of those that have joined. A piece more costs nothing for each."""

    __slots__ = ("pieces",)

    def __init__(self) -> None:
        self.pieces: list[Times] = []

    def add(self, times: Times) -> None:
        """A token came for each at each of these times, which nobody changes any more."""
        self.pieces.append(times)


class TokenTimes(Sequence[float]):
    """In seconds, in order. Those that many requests have in common are kept once for all of them, until somebody
    looks at them."""

    __slots__ = ("_num_read", "_offset_s", "_own", "_shared")

    def __init__(self, offset_s: float = 0.0) -> None:
        """offset_s: is added to what is noted."""
        self._offset_s = offset_s
        self._own = array("d")
        self._shared: SharedTimes | None = None
        self._num_read = 0

    def append(self, at_s: float) -> None:
        """A token came."""
        self._settled().append(at_s + self._offset_s)

    def extend(self, times: Iterable[float]) -> None:
        """Tokens came."""
        self._settled().extend([at_s + self._offset_s for at_s in times])

    def join(self, shared: SharedTimes) -> None:
        """From now on whatever is added there came here, too."""
        assert self._shared is None, "it has joined others"
        self._shared, self._num_read = shared, len(shared.pieces)

    def leave(self, shared: SharedTimes | None = None) -> None:
        """What is added there from now on did not come here; nothing changes if it has joined no others, or is to
        leave these and has joined others since."""
        if shared is None or shared is self._shared:
            self._settled()
            self._shared = None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TokenTimes) and self._settled() == other._settled()

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"TokenTimes({self._settled().tolist()})"

    def __bool__(self) -> bool:
        return bool(self._own) or (self._shared is not None and len(self._shared.pieces) > self._num_read)

    def __len__(self) -> int:
        return len(self._own) + sum(map(len, self._unread()))

    @overload
    def __getitem__(self, index: int) -> float: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[float]: ...
    def __getitem__(self, index: int | slice) -> float | Sequence[float]:
        return self._settled()[index]

    def __iter__(self) -> Iterator[float]:
        return iter(self._settled())

    def _unread(self) -> list[Times]:
        return [] if self._shared is None else self._shared.pieces[self._num_read :]

    def _settled(self) -> array[float]:
        if unread := self._unread():
            self._own.frombytes((np.concatenate(unread) + self._offset_s).tobytes())
            self._num_read += len(unread)
        return self._own
