"""What of a test the default lane runs where each of its cases takes long. The slow lane runs all of them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def rest_is_slow(cases: Iterable[Any], first: int = 1) -> list[Any]:
    """For `parametrize`: these cases, all but the `first` ones marked as slow. A tuple has values of several names."""
    return [
        case if place < first else pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=pytest.mark.slow)
        for place, case in enumerate(cases)
    ]
