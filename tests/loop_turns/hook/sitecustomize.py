"""Python imports this at its start where PYTHONPATH leads here: long callbacks of event loops are written down.

Daemons then run on asyncio's own loop, whose callbacks pass one door. Each line: seconds of the host's monotonic clock,
milliseconds of the thread's CPU time, the callback.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from pathlib import Path
from typing import Any

LEAST_NS = 500_000

if (directory := os.environ.get("LOOP_TURNS")) is not None:
    import uvloop

    _run = asyncio.events.Handle._run
    _file = (Path(directory) / str(os.getpid())).open("a", buffering=1, encoding="utf-8")
    _file.write(" ".join(sys.orig_argv) + "\n")

    def _timed(handle: asyncio.Handle) -> None:
        began_ns = time.thread_time_ns()
        _run(handle)
        took_ns = time.thread_time_ns() - began_ns
        if took_ns >= LEAST_NS:
            _file.write(f"{time.monotonic():.3f} {took_ns / 1e6:.2f} {_name(handle)}\n")

    def _name(handle: asyncio.Handle) -> str:
        callback: Any = handle._callback
        task = getattr(callback, "__self__", None)
        return task.get_name() if isinstance(task, asyncio.Task) else getattr(callback, "__qualname__", repr(callback))

    asyncio.events.Handle._run = _timed  # type: ignore[method-assign]
    uvloop.run = asyncio.run  # type: ignore[assignment]
