"""What the daemons share: event loop, signals, readiness, and the links to the process that started them."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import resource
import signal
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import click
import structlog
import uvloop

from distkv.cli.daemons.service_manager import ServiceManager
from distkv.cli.signals import Bursts
from distkv.errors import ConfigError, DistKVError, StartupFailed

Ready = Callable[[dict[str, Any]], None]
Actor = Callable[[Ready, asyncio.Event], Awaitable[int]]

CANCEL_S = 5.0
ABANDONED_EXIT = 1
MAX_DESCRIPTORS = 65_536
GC_THRESHOLDS = 10_000, 500, 100
"""Few enough new objects at a time that looking at them takes about 3 ms. Requests and messages leave nothing in
circles, and looking at all of thousands of them would stop everything for a while."""


def daemon_options() -> list[click.Parameter]:
    """Hidden options by which a parent process watches a daemon; one descriptor may be both."""
    return [
        click.Option(["--ready-fd"], type=int, hidden=True, help="Write one JSON line here when ready."),
        click.Option(["--lifeline-fd"], type=int, hidden=True, help="End quickly when this reaches its end of file."),
    ]


def serve(actor: Actor, *, drain_s: float, ready_fd: int | None = None, lifeline_fd: int | None = None) -> int:
    """Run an actor until it ends, and return its exit code.

    The first SIGTERM, SIGINT or SIGHUP sets its stop event, after which it has `drain_s` to end; one of a second burst
    ends the process at once. The end of `lifeline_fd` means that the parent died: the actor is cancelled, and whatever
    does not heed that is ended after CANCEL_S. A fatal error is logged and becomes exit code 1, a ConfigError 2. A
    service manager that left its NOTIFY_SOCKET in the environment is notified when the actor is ready and when it
    stops. The limit on descriptors is raised as far as the system permits, up to MAX_DESCRIPTORS. Once it is ready,
    garbage is collected by GC_THRESHOLDS, and what is there by then is never looked at again.
    """
    raise_descriptor_limit()
    for fd in {ready_fd, lifeline_fd} - {None}:
        assert fd is not None
        os.set_inheritable(fd, False)
    try:
        return uvloop.run(_Daemon(drain_s, ready_fd, lifeline_fd).run(actor))
    except KeyboardInterrupt:
        return 128 + signal.SIGINT


def raise_descriptor_limit() -> None:
    """Connections are bounded by descriptors, and the usual limit is far below what the system permits."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    unlimited = hard == resource.RLIM_INFINITY
    resource.setrlimit(
        resource.RLIMIT_NOFILE, (max(soft, MAX_DESCRIPTORS if unlimited else min(hard, MAX_DESCRIPTORS)), hard)
    )


class _Daemon:
    def __init__(self, drain_s: float, ready_fd: int | None, lifeline_fd: int | None) -> None:
        self._drain_s = drain_s
        self._ready_fd = ready_fd
        self._lifeline_fd = lifeline_fd
        self._service_manager = ServiceManager()
        self._stop = asyncio.Event()
        self._log = structlog.get_logger()
        self._limit: asyncio.Timeout | None = None
        self._bursts = Bursts()

    async def run(self, actor: Actor) -> int:
        loop = asyncio.get_running_loop()
        for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            if signum != signal.SIGHUP or signal.getsignal(signum) is not signal.SIG_IGN:  # as by nohup
                loop.add_signal_handler(signum, self._on_signal, signum)
        if self._lifeline_fd is not None:
            os.set_blocking(self._lifeline_fd, False)
            loop.add_reader(self._lifeline_fd, self._on_lifeline, self._lifeline_fd)
        limit = asyncio.timeout(None)
        try:
            async with limit:
                self._limit = limit
                try:
                    return await actor(self._on_ready, self._stop)
                finally:
                    self._limit = None
        except DistKVError as error:
            self._log.error("fatal", reason=str(error))
            see_log = isinstance(error, StartupFailed) and error.exit_code is not None  # nobody said why
            self._report_to_parent({"fatal": str(error), "see_log": see_log})
            return 2 if isinstance(error, ConfigError) else 1
        except Exception as error:
            if isinstance(error, TimeoutError) and limit.expired():
                self._log.error("ended before it had stopped in good order")
                return ABANDONED_EXIT
            self._log.error("fatal", reason=f"{type(error).__name__}: {error}", exc_info=True)
            return 1

    def _on_signal(self, signum: int) -> None:
        if not self._bursts.begins(asyncio.get_running_loop().time()):
            return
        if self._stop.is_set():
            self._log.error("second signal, ending at once", signal=signal.Signals(signum).name)
            os._exit(128 + signum)
        self._begin_to_stop(signal.Signals(signum).name)

    def _begin_to_stop(self, told_by: str) -> None:
        self._log.info("stopping", signal=told_by, drain_s=self._drain_s)
        self._service_manager.notify(STOPPING=1, STATUS=f"stopping, for {self._drain_s:g} s at most")
        self._stop.set()
        asyncio.get_running_loop().call_later(self._drain_s, self._end, "not stopped in time")

    def _on_lifeline(self, fd: int) -> None:
        try:
            if os.read(fd, 4096):  # our parent stops us; that we have been told already is not for it to know
                if self._bursts.begins(asyncio.get_running_loop().time()) and not self._stop.is_set():
                    self._begin_to_stop("parent")
                return
        except BlockingIOError:
            return
        except OSError:
            pass
        asyncio.get_running_loop().remove_reader(fd)
        # In this order, so that an actor which stops when it may does not end as if in good order.
        self._end("the parent process is gone")
        self._stop.set()

    def _end(self, why: str) -> None:
        """Cancel the actor, and end the process if that takes too long."""
        self._log.error("ending", reason=why)
        loop = asyncio.get_running_loop()
        if self._limit is not None:
            self._limit.reschedule(loop.time())
        loop.call_later(CANCEL_S, os._exit, ABANDONED_EXIT)

    def _on_ready(self, report: Mapping[str, Any]) -> None:
        gc.freeze()
        gc.set_threshold(*GC_THRESHOLDS)
        self._log.info("ready", **report)
        self._service_manager.notify(READY=1, MAINPID=os.getpid(), STATUS=f"ready at {report.get('address', '')}")
        self._report_to_parent(report)

    def _report_to_parent(self, report: Mapping[str, Any]) -> None:
        if self._ready_fd is None:
            return
        line = json.dumps({"pid": os.getpid(), **report}).encode() + b"\n"
        try:
            os.write(self._ready_fd, line)
        except OSError as error:
            self._log.warning("nobody waits for readiness", reason=str(error))
