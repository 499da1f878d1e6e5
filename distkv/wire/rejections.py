"""Which connections send what does not decode: a bad message costs only itself, who sends nothing else is shut out."""

from __future__ import annotations

from collections import OrderedDict

MAX_BAD_IN_A_ROW = 256
MAX_ROUTES = 4096


class Rejections:
    """Bad messages of each route since its last good one. What is remembered is bounded: the routes longest unheard are
    forgotten first."""

    def __init__(self) -> None:
        self._in_a_row: OrderedDict[bytes, int] = OrderedDict()

    def __len__(self) -> int:
        return len(self._in_a_row)

    def is_shut_out(self, route: bytes) -> bool:
        """Whether nothing more is to be read from a route."""
        return self._in_a_row.get(route, 0) >= MAX_BAD_IN_A_ROW

    def good(self, route: bytes) -> None:
        """A message decoded."""
        self._in_a_row.pop(route, None)

    def bad(self, route: bytes) -> None:
        """A message did not decode."""
        self._in_a_row[route] = self._in_a_row.pop(route, 0) + 1
        if len(self._in_a_row) > MAX_ROUTES:
            self._in_a_row.popitem(last=False)
