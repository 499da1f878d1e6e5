"""One daemon as a child process: started, watched until ready, ended with everything it started."""

from __future__ import annotations

import contextlib
import json
import os
import select
import selectors
import signal
import socket
import subprocess
import time
import weakref
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from distkv.endings import describe_exit
from distkv.errors import StartupFailed

LOG_LINES = 25


class Child:
    """A daemon in a session of its own, tied to us by a socket: readiness comes over it, and its end of file
    shows either side that the other is gone, however it went. A process that is forked from ours has no such socket,
    or the daemon would live as long as that, too; there one can see whether the daemon runs, and no more.

    name: what errors call it. report: what it sent when it was ready (address, pid, ...), or why it failed.
    """

    def __init__(self, name: str, command: Sequence[str], log_path: Path, env: dict[str, str]) -> None:
        self.name = name
        self.log_path = log_path
        self.report: dict[str, Any] = {}
        self._line = b""
        self._owner_pid = os.getpid()
        self._socket, theirs = socket.socketpair()
        fd = theirs.fileno()
        try:
            with log_path.open("ab") as log:
                self.process = subprocess.Popen(
                    [*command, f"--ready-fd={fd}", f"--lifeline-fd={fd}"],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    pass_fds=(fd,),
                    start_new_session=True,
                    env=env,
                )
        except BaseException:
            self._socket.close()
            raise
        finally:
            theirs.close()
        _STARTED.add(self)

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def address(self) -> str:
        """Where it is reached, "tcp://host:port" or "http://host:port"; empty until it is ready."""
        return str(self.report.get("address", ""))

    @property
    def alive(self) -> bool:
        """Whether the process runs. Whatever it started is killed once it does not."""
        return not self._ended(block=False)

    @property
    def exit_code(self) -> int | None:
        """As subprocess.Popen.returncode: negative is a signal; None while it runs."""
        return None if self.alive else self.process.returncode

    def fileno(self) -> int:
        """For selectors: readable when it is ready and when it has ended."""
        return self._socket.fileno()

    def is_ready(self) -> bool:
        """Whether it has become ready by now; to be asked until then. Raises StartupFailed if it has ended."""
        poller = select.poll()
        poller.register(self, select.POLLIN)
        return bool(poller.poll(0)) and self.read_ready()

    def read_ready(self) -> bool:
        """Take what came after it became readable; True once it is ready. Raises StartupFailed if it has ended."""
        try:
            data = self._socket.recv(65536)
        except ConnectionError:
            data = b""
        self._line += data
        if b"\n" in self._line:
            self.report = json.loads(self._line.partition(b"\n")[0])
            if "fatal" not in self.report:
                return True
        if not data:
            self._ended(block=True)
            raise self.failure()
        return False

    def failure(self) -> StartupFailed:
        """The error of one that ended: its own reason if it gave one, else, or where its worker gave none, the last
        lines of its log."""
        code, reason = self.exit_code, self.report.get("fatal")
        how = describe_exit(code)
        log = self.last_log() if not reason or self.report["see_log"] else ""
        return StartupFailed(self.name, f"{how}: {reason}" if reason else how, log, code)

    def last_log(self) -> str:
        """The last lines it wrote."""
        try:
            lines = self.log_path.read_text(errors="replace").splitlines()
        except OSError:
            return ""
        return "\n".join(lines[-LOG_LINES:])

    def signal(self, signum: int) -> None:
        """Send it a signal if it still runs."""
        if self.alive:
            os.kill(self.pid, signum)

    def stop(self) -> None:
        """Have it end in good order; changes nothing where somebody else has told it so."""
        if self.report and "fatal" not in self.report and self.alive:
            with contextlib.suppress(OSError):  # it has just ended
                self._socket.send(b"stop\n")
        else:
            self.signal(signal.SIGTERM)  # does not listen yet

    def kill(self) -> None:
        """End it and everything it started, at once."""
        self._kill_group()
        self._ended(block=True)

    def close(self) -> None:
        """Kill what still runs and let go of it."""
        self.kill()
        self._socket.close()

    def _ended(self, *, block: bool) -> bool:
        if self.process.returncode is not None:
            return True
        if os.getpid() != self._owner_pid:
            return not _is_there(self.pid)
        flags = os.WEXITED | os.WNOWAIT | (0 if block else os.WNOHANG)
        with contextlib.suppress(ChildProcessError):  # somebody else may have waited for it
            if os.waitid(os.P_PID, self.pid, flags) is None:
                return False
        # Not reaped yet, so the number of its group is still its own.
        self._kill_group()
        self.process.wait()
        return True

    def _kill_group(self) -> None:
        if self.process.returncode is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal.SIGKILL)


_STARTED: weakref.WeakSet[Child] = weakref.WeakSet()


def _let_go() -> None:
    """In a process that was just forked."""
    for child in _STARTED:
        child._socket.close()


os.register_at_fork(after_in_child=_let_go)


def _is_there(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


def wait_ready(
    children: Iterable[Child], deadline_s: float, on_ready: Callable[[str], None] = lambda name: None
) -> None:
    """Return when all are ready; `on_ready` is called with the name of each as soon as it is.

    Raises StartupFailed when one ends first or time.monotonic() passes `deadline_s`.
    """
    with selectors.DefaultSelector() as selector:
        for child in children:
            selector.register(child, selectors.EVENT_READ, child)
        while selector.get_map():
            ready = selector.select(max(0.0, min(deadline_s - time.monotonic(), 0.2)))
            for key, _ in ready:
                if key.data.read_ready():
                    selector.unregister(key.fileobj)
                    on_ready(key.data.name)
            if not ready and time.monotonic() >= deadline_s:
                slow: Child = next(iter(selector.get_map().values())).data
                raise StartupFailed(slow.name, "it was not ready in time", slow.last_log())


def stop(children: Sequence[Child], timeout_s: float) -> None:
    """All are told to end; those that still run after `timeout_s` are killed, with all they started."""
    for child in children:
        child.stop()
    deadline_s = time.monotonic() + timeout_s
    for child in children:
        while child.alive and time.monotonic() < deadline_s:
            time.sleep(0.01)
        child.kill()
