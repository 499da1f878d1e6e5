"""The command that starts an engine worker: `python -m distkv.actors.worker.start`."""

from __future__ import annotations

import gc
import os
import sys

from distkv.process_priority import begin_worker


def main() -> int:
    """Load the worker, most of which is torch, and run it; returns its exit code.

    What is loaded stays, so no garbage is looked for meanwhile, nor in it ever again.
    """
    begin_worker()
    gc.disable()
    from distkv.actors.worker.process import main as run
    from distkv.log.lines import flush

    gc.freeze()
    gc.enable()
    code = run()
    flush()
    return code


if __name__ == "__main__":
    code = main()
    # Threads may be in the middle of a step or serve a peer; nothing of theirs outlives the process.
    sys.stdout.flush()
    os._exit(code)
