"""The command that starts an engine worker: `python -m distkv.actors.worker.start`."""

from __future__ import annotations

import gc
import os
import signal
import socket
import sys

import msgspec
import structlog

from distkv.actors.worker.spec import SPEC_VARIABLE, WorkerSpec
from distkv.log.lines import configure, flush
from distkv.process_priority import begin_worker
from distkv.wire.messages.from_worker import WorkerFailed
from distkv.wire.worker_pipe import WorkerEnd


def main() -> int:
    """Load the worker, most of which is torch, and run it; returns its exit code.

    What is loaded stays, so no garbage is looked for meanwhile, nor in it ever again.
    """
    for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(signum, signal.SIG_IGN)  # the rManager decides when this process ends
    begin_worker()
    gc.disable()
    try:
        from distkv.actors.worker.process import main as run
    except Exception as error:  # a library that torch needs is not there, or there is no memory for all of them
        return _not_loaded(error)
    gc.freeze()
    gc.enable()
    code = run()
    flush()
    return code


def _not_loaded(error: Exception) -> int:
    """Tell the rManager, as the worker would."""
    spec = msgspec.json.decode(os.environ[SPEC_VARIABLE], type=WorkerSpec)
    configure("worker", spec.instance_id, spec.logging.log_level, spec.logging.log_json)
    reason = f"its code cannot be loaded: {type(error).__name__}: {error}"
    structlog.get_logger().error("worker failed", reason=reason, exc_info=error)
    with WorkerEnd(socket.socket(fileno=spec.pipe_fd)) as pipe:
        pipe.send(WorkerFailed(reason=reason))
    flush()
    return 1


if __name__ == "__main__":
    code = main()
    # Threads may be in the middle of a step or serve a peer; nothing of theirs outlives the process.
    sys.stdout.flush()
    os._exit(code)
