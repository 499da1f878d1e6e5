"""Own steps and peers at the same time, over the same threads."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest
import torch

from distkv.kernels import AttentionMetadata, BlockTable
from distkv.kernels.cpu.dispatch import choose
from distkv.kernels.cpu.native_backend import NativeBackend
from tests.kernels.layers import layer_of

CALLERS, CALLS = 4, 60


@pytest.fixture
def backend() -> Iterator[NativeBackend]:
    native = choose().native
    if native is None:
        pytest.skip("the native library is not built")
    backend = NativeBackend(native)
    backend.use_threads(3, ())
    yield backend
    backend.use_threads(1, ())


def test_callers_at_the_same_time_get_their_own_results(backend: NativeBackend) -> None:
    generator = torch.Generator().manual_seed(0)
    k, v = (torch.randn(64, 2, 16, 32, generator=generator) for _ in range(2))
    kv, blocks = layer_of(backend, k, v), BlockTable(tuple(range(64)), tuple(range(0, 1024, 16)), 1024, 16)
    queries = [torch.randn(rows, 8, 32, generator=generator) for rows in (1, 1, 5, 40)]
    asked = [AttentionMetadata((range(len(q)),), (blocks,), torch.arange(1024 - len(q), 1024)) for q in queries]
    alone = [backend.attend(q, kv, metadata, 0.2) for q, metadata in zip(queries, asked, strict=True)]
    wrong: list[int] = []
    start = threading.Barrier(CALLERS)

    def call(index: int) -> None:
        start.wait(10)
        for _ in range(CALLS):
            out, lse = backend.attend(queries[index], kv, asked[index], 0.2, serving=index != 0)
            merged = backend.merge([(out, lse), (out, lse)])[0]
            if not (torch.equal(out, alone[index][0]) and torch.equal(lse, alone[index][1])):
                wrong.append(index)
            if not torch.allclose(merged, out, rtol=1e-6, atol=1e-6):
                wrong.append(index)

    callers = [threading.Thread(target=call, args=(index,)) for index in range(CALLERS)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join(60)
    assert not any(caller.is_alive() for caller in callers)
    assert wrong == []


SHORT_OF_MEMORY = """
import resource
import torch
from distkv.kernels.cpu.dispatch import choose
from distkv.kernels.cpu.native_backend import NativeBackend

native = choose().native
backend = NativeBackend(native)
backend.use_threads(3, ())
generator = torch.Generator().manual_seed(0)
weight, x = torch.randn(2048, 64, generator=generator), torch.randn(512, 64, generator=generator)
linear, expected = backend.linear(weight, None), x @ weight.T
linear(x[:1])

def size():
    with open("/proc/self/status") as status:
        return next(1024 * int(line.split()[1]) for line in status if line.startswith("VmSize"))

hard, failed, done = resource.getrlimit(resource.RLIMIT_AS)[1], 0, 0
for step in range(400):
    resource.setrlimit(resource.RLIMIT_AS, (size() + step * 65536, hard))
    try:
        y = linear(x)
    except (MemoryError, RuntimeError):
        y = None
    resource.setrlimit(resource.RLIMIT_AS, (hard, hard))
    if y is None:
        failed += 1
    else:
        torch.testing.assert_close(y, expected, rtol=1e-4, atol=1e-4)
        done += 1
    if done > 3:
        break
print("failed" if failed else "never failed", done)
"""


def test_threads_that_find_no_memory_fail_the_call_and_nothing_else(backend: NativeBackend) -> None:
    """Not the process; and no item is worked on behind the caller's back afterwards."""
    # What is asked for comes from the system each time: not from what was freed, or is kept for other threads.
    environment = os.environ | {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_ARENA_MAX": "1"}
    command = [sys.executable, "-c", SHORT_OF_MEMORY]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=100)
    assert (ended.returncode, ended.stdout) == (0, "failed 4\n"), ended.stderr


FEW_THREADS = """
import os
import resource
import torch
from distkv.errors import ConfigError
from distkv.kernels.cpu.dispatch import choose
from distkv.kernels.cpu.native_backend import NativeBackend

torch.set_num_threads(1)
backend = NativeBackend(choose().native)
backend.use_threads(3, ())
if os.getuid() == 0:  # whom the limit does not bind
    os.setuid(65534)
resource.setrlimit(resource.RLIMIT_NPROC, (1, 1))
try:
    backend.use_threads(8, ())
except ConfigError as error:
    print(error.key)
torch.set_num_threads(1)
weight, x = torch.randn(2048, 64), torch.randn(512, 64)
assert torch.allclose(backend.linear(weight, None)(x), x @ weight.T, rtol=1e-4, atol=1e-4)
backend.use_threads(1, ())
print("computes alone")
"""


def test_threads_that_the_system_does_not_give_are_an_error_of_the_setting(backend: NativeBackend) -> None:
    """Not the end of the process; and those that there are can still be used."""
    ended = subprocess.run([sys.executable, "-c", FEW_THREADS], capture_output=True, text=True, timeout=100)
    assert (ended.returncode, ended.stdout) == (0, "threads\ncomputes alone\n"), ended.stderr
