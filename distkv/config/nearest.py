"""The known word that somebody may have meant."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def nearest(name: str, known: Iterable[str], where: str = "see --help for all of them") -> str:
    """A hint that names the known word nearest to `name`, or `where` to find them all."""
    close = difflib.get_close_matches(name, sorted(known), n=1, cutoff=0.5)
    return f"did you mean {close[0]}?" if close else where
