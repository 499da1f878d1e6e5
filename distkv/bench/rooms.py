"""Where the benchmarks are: every module of these rooms is one, except what draws their reports."""

from __future__ import annotations

import pkgutil
from collections.abc import Mapping

from distkv.bench import computing, deciding, reports, serving

ROOMS = computing, deciding, serving, reports
PLOT = "plot"


def modules() -> Mapping[str, str]:
    """The benchmarks there are, and `plot`, by name."""
    found = {
        module.name: f"{room.__name__}.{module.name}"
        for room in ROOMS
        for module in pkgutil.iter_modules(room.__path__)
    }
    return dict(sorted(found.items()))
