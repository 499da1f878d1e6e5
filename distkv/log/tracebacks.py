"""Tracebacks for logs: of a bounded length, and so of a bounded cost, whatever a request ran into."""

from __future__ import annotations

import traceback

MOST_FRAMES = 32


def traceback_text(error: BaseException) -> str:
    """As Python writes it, with the innermost MOST_FRAMES of every error in the chain. One of a thousand frames, as a
    recursion has, takes a tenth of a second to write and 170 kB."""
    return "".join(traceback.format_exception(error, limit=-MOST_FRAMES)).removesuffix("\n")
