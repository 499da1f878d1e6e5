"""The command that starts an engine worker: `python -m distkv.actors.worker.start`."""

from __future__ import annotations

import ctypes
import gc
import os
import select
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

_PR_SET_PDEATHSIG = 1


def main() -> int:
    """Load the worker, most of which is torch, and run it; returns its exit code. The process ends with the rManager.

    What is loaded stays, so no garbage is looked for meanwhile, nor in it ever again.
    """
    for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(signum, signal.SIG_IGN)  # the rManager decides when this process ends
    spec = msgspec.json.decode(os.environ[SPEC_VARIABLE], type=WorkerSpec)
    _end_with_parent(spec.pipe_fd)
    begin_worker()
    gc.disable()
    try:
        from distkv.actors.worker.process import main as run
    except Exception as error:  # a library that torch needs is not there, or there is no memory for all of them
        return _not_loaded(spec, error)
    gc.freeze()
    gc.enable()
    code = run()
    flush()
    return code


def _end_with_parent(pipe_fd: int) -> None:
    """Have the kernel kill this process when the rManager dies, also while it loads or computes."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    other_end = select.poll()
    other_end.register(pipe_fd, 0)
    if other_end.poll(0):  # it has died before, and whoever is the parent now does not matter
        os._exit(1)


def _not_loaded(spec: WorkerSpec, error: Exception) -> int:
    """Tell the rManager, as the worker would."""
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
