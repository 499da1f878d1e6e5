"""Memory of this process and where it begins."""

from __future__ import annotations

import numpy as np


class Addressed:
    """view: all of it. address: of its first byte, looked up once, as that takes as long as to copy an rBlock where
    the code for it has left the caches."""

    __slots__ = ("address", "view")

    def __init__(self, view: memoryview) -> None:
        """view: flat, of at least a byte."""
        self.view = view
        self.address: int = np.frombuffer(view, dtype=np.uint8).__array_interface__["data"][0]

    def held(self) -> memoryview:
        """All of it, which stays where it is until this is released, whoever releases or unmaps it meanwhile. Raises
        ValueError when somebody has done so already."""
        return self.view[:]
