"""What waits to be read takes little more memory than its bytes; who reads may wait until others rest; connections wait
where nobody accepts them yet."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

MESSAGES, SIZE_BYTES = 2000, 340
PROGRAM = f"""
import zmq
from distkv.wire.sockets.options import open_socket

def memory():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096

reader, asked = open_socket(zmq.ROUTER, ipv6=False), open_socket(zmq.REP, ipv6=False)
writer, asking = open_socket(zmq.DEALER, ipv6=False), open_socket(zmq.REQ, ipv6=False)
writer.connect(f"tcp://127.0.0.1:{{reader.bind_to_random_port('tcp://127.0.0.1')}}")
asking.connect(f"tcp://127.0.0.1:{{asked.bind_to_random_port('tcp://127.0.0.1')}}")
writer.send(b"")
assert reader.recv_multipart()[1] == b""
before = memory()
for _ in range({MESSAGES}):
    writer.send(bytes({SIZE_BYTES}))
    asking.send(b"")  # so that each is read from the connection by itself
    asked.send(asked.recv())
    asking.recv()
print((memory() - before) / {MESSAGES})
for _ in range({MESSAGES}):
    assert len(reader.recv_multipart()[1]) == {SIZE_BYTES}
for socket in (reader, writer, asked, asking):
    socket.close(linger=0)
"""


@pytest.mark.timeout(60)
def test_a_small_message_that_waits_does_not_keep_the_buffer_it_was_read_with() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=50, check=True)
    assert float(done.stdout) < 4 * SIZE_BYTES


POLICIES = """
import os
import time
from distkv.wire.sockets.options import open_socket, read_when_others_rest
import zmq

read_when_others_rest()
with open_socket(zmq.ROUTER, ipv6=False) as socket:
    socket.bind_to_random_port("tcp://127.0.0.1")
    policies, until_s = [], time.monotonic() + 20
    while os.SCHED_BATCH not in policies and time.monotonic() < until_s:
        policies = [os.sched_getscheduler(int(thread)) for thread in os.listdir("/proc/self/task")]
    print(os.sched_getscheduler(0) == os.SCHED_OTHER, os.SCHED_BATCH in policies)
"""


@pytest.mark.timeout(60)
def test_the_thread_that_reads_gives_way_and_no_other_does() -> None:
    done = subprocess.run([sys.executable, "-c", POLICIES], capture_output=True, text=True, timeout=50, check=True)
    assert done.stdout.split() == ["True", "True"]


CLIENTS = 500
SYSTEMS_MOST = int(Path("/proc/sys/net/core/somaxconn").read_text())
STANDING = """
import zmq
from distkv.wire.sockets.options import open_socket

with open_socket(zmq.ROUTER, ipv6=False) as socket:
    print(socket.bind_to_random_port("tcp://127.0.0.1"), flush=True)
    input()
"""


@pytest.mark.skipif(SYSTEMS_MOST < CLIENTS, reason=f"the system lets {SYSTEMS_MOST} connections wait")
@pytest.mark.timeout(60)
def test_those_that_connect_while_a_process_stands_still_do_not_have_to_try_again() -> None:
    """ZeroMQ's own backlog is 100: one more waits for a second, then for two."""
    with ExitStack() as stack:
        process = stack.enter_context(
            subprocess.Popen([sys.executable, "-c", STANDING], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        )
        stack.callback(process.kill)
        assert process.stdout is not None
        port = int(process.stdout.readline())
        os.kill(process.pid, signal.SIGSTOP)
        for _ in range(CLIENTS):
            stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=0.9))
