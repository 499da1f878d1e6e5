"""When tokens of a request came."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from typing import overload

import numpy as np

Times = np.ndarray[tuple[int], np.dtype[np.float64]]


class TokenTimes(Sequence[float]):
    """In seconds, in order. Those that many requests have in common are kept once for all of them, until somebody
    looks at them."""

    __slots__ = ("_offset_s", "_own", "_shared")

    def __init__(self, offset_s: float = 0.0) -> None:
        """offset_s: is added to what is noted."""
        self._offset_s = offset_s
        self._own = array("d")
        self._shared: list[Times] = []

    def append(self, at_s: float) -> None:
        """A token came."""
        self._settled().append(at_s + self._offset_s)

    def extend(self, times: Iterable[float]) -> None:
        """Tokens came."""
        self._settled().extend([at_s + self._offset_s for at_s in times])

    def share(self, times: Times) -> None:
        """Tokens came; nobody changes these times any more."""
        self._shared.append(times)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TokenTimes) and self._settled() == other._settled()

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"TokenTimes({self._settled().tolist()})"

    def __bool__(self) -> bool:
        return bool(self._own or self._shared)

    def __len__(self) -> int:
        return len(self._own) + sum(map(len, self._shared))

    @overload
    def __getitem__(self, index: int) -> float: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[float]: ...
    def __getitem__(self, index: int | slice) -> float | Sequence[float]:
        return self._settled()[index]

    def __iter__(self) -> Iterator[float]:
        return iter(self._settled())

    def _settled(self) -> array[float]:
        if self._shared:
            self._own.frombytes((np.concatenate(self._shared) + self._offset_s).tobytes())
            self._shared.clear()
        return self._own
