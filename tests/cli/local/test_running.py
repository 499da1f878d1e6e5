"""What is shown of a cluster that runs, and what a stop waits for, in words."""

from __future__ import annotations

import errno
import io
import os
import sys
from collections.abc import Callable

import pytest
from rich.console import Console
from rich.live import Live

from distkv.cli.commands import up
from distkv.cli.local import running
from distkv.cli.local.running import _show, _shown, _waiting


class Broken(io.StringIO):
    """Where nothing can be written, but with 0 as error."""

    def __init__(self, error: int) -> None:
        super().__init__()
        self.error = error

    def flush(self) -> None:
        if self.error:
            raise OSError(self.error, os.strerror(self.error))


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO])
def test_neither_a_full_disk_nor_a_terminal_that_is_gone_ends_a_cluster(error: int) -> None:
    """The first line about a process that died did."""
    _show(Console(file=Broken(error)), "instance i0 died")
    with pytest.raises(OSError, match="Bad file descriptor"):
        _show(Console(file=Broken(errno.EBADF)), "instance i0 died")


def test_nor_does_a_full_disk_keep_one_from_starting(monkeypatch: pytest.MonkeyPatch) -> None:
    """It ended while it started, with all that was ready."""

    class Started(Exception):
        pass

    def start(*_: object, on_ready: Callable[[str], None], **__: object) -> None:
        on_ready("gManager")
        raise Started

    monkeypatch.setattr(running, "LocalCluster", start)
    monkeypatch.setattr(sys, "stdout", Broken(errno.ENOSPC))
    with pytest.raises(Started):
        up.command.main(["--port", "0", "--no-gateway", "--kv-tokens", "256"], standalone_mode=False)


def test_an_interrupt_by_a_terminal_that_goes_is_one() -> None:
    """`up` ended with 1, as if the view had failed."""
    terminal = Broken(0)
    live = Live("view", console=Console(file=terminal, force_terminal=True), auto_refresh=False, transient=True)
    with pytest.raises(KeyboardInterrupt), _shown(live):
        live.refresh()
        terminal.error = errno.EIO
        raise KeyboardInterrupt


@pytest.mark.parametrize(
    ("requests", "said"),
    [
        ({"i0": 1}, "waiting for 1 request on i0; Ctrl-C again ends it"),
        ({"i2": 12}, "waiting for 12 requests on i2; Ctrl-C again ends them"),
        ({"i0": 1, "i1": 3}, "waiting for 1 request on i0, 3 on i1; Ctrl-C again ends them"),
        ({}, "no request is left; ending the processes"),
    ],
)
def test_what_a_stop_waits_for(requests: dict[str, int], said: str) -> None:
    assert _waiting(requests) == said
