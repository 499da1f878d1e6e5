"""Dispatchers by name."""

from __future__ import annotations

from random import Random
from typing import assert_never

from distkv.control.cluster.dispatch.drawn import Drawn
from distkv.control.cluster.dispatch.interface import Dispatcher
from distkv.control.cluster.dispatch.least_loaded import LeastLoaded
from distkv.control.cluster.dispatch.predicted import Predicted
from distkv.types import DispatchName


def dispatcher_named(name: DispatchName, entropy: Random, *, shares_memory: bool) -> Dispatcher:
    """shares_memory: whether a request that is too large for its instance borrows."""
    match name:
        case "predicted":
            return Predicted(entropy, shares_memory=shares_memory)
        case "least-loaded":
            return LeastLoaded()
        case "random":
            return Drawn(entropy)
        case _:
            assert_never(name)
