"""Descriptors that one process gives to another one."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from distkv.wire.links.memory.pool_memory import PoolUnmappable
from distkv.wire.links.streams.descriptors import DescriptorIntake, give


def test_descriptors_go_from_process_to_process_and_to_no_other() -> None:
    stranger = (
        "import sys, socket, os\n"
        "sock = socket.socket(socket.AF_UNIX); sock.connect('\\0' + sys.argv[1])\n"
        "socket.send_fds(sock, [b'x'], [0]); print(os.getpid(), flush=True); sys.stdin.read()\n"
    )
    with DescriptorIntake() as intake, Path("/dev/null").open() as file:
        command = [sys.executable, "-c", stranger, intake.name]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            pid = int(process.stdout.readline())
            assert not give(file.fileno(), intake.name, os.getpid())
            descriptor = intake.take(os.getpid())
            assert os.path.sameopenfile(descriptor, file.fileno()), "not the stranger's, who came first"
            assert not os.get_inheritable(descriptor)
            os.close(descriptor)
            with pytest.raises(PoolUnmappable, match="it gave no descriptor"):
                intake.take(os.getpid())
            process.kill()
        assert "another process's" in give(file.fileno(), intake.name, pid)
        assert "another process's" in give(file.fileno(), intake.name, None)
    assert "cannot be given" in give(0, intake.name, os.getpid())
    assert "cannot be given" in give(0, "x" * 200, os.getpid())


def test_strangers_before_an_intake_hold_nobody_up() -> None:
    with DescriptorIntake() as intake, contextlib.ExitStack() as stack:
        for _ in range(20):
            sock = stack.enter_context(socket.socket(socket.AF_UNIX))
            sock.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                sock.connect(f"\0{intake.name}")
        assert "cannot be given" in give(0, intake.name, os.getpid())
        with pytest.raises(PoolUnmappable):
            intake.take(os.getpid() + 1)
