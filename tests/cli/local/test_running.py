"""What is shown of a cluster that runs, and what a stop waits for, in words."""

from __future__ import annotations

import errno
import io
import os

import pytest
from rich.console import Console

from distkv.cli.local.running import _show, _waiting


class Broken(io.StringIO):
    """Where nothing can be written."""

    def __init__(self, error: int) -> None:
        super().__init__()
        self._error = error

    def flush(self) -> None:
        raise OSError(self._error, os.strerror(self._error))


def test_a_full_disk_ends_no_cluster() -> None:
    """The first line about a process that died did."""
    _show(Console(file=Broken(errno.ENOSPC)), "instance i0 died")
    with pytest.raises(OSError, match="Input/output"):
        _show(Console(file=Broken(errno.EIO)), "instance i0 died")


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
