"""Every test leaves the machine as it found it: no processes, threads, tasks, sockets or shared memory stay behind."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import gc
import inspect
import os
import threading
import time
from collections.abc import AsyncIterator, Generator, Iterator
from pathlib import Path

import psutil
import pytest
import pytest_asyncio
import torch
from hypothesis import HealthCheck, settings

if not torch.cuda.is_available():
    # Read when Triton is imported: without a GPU its interpreter runs the kernels.
    os.environ.setdefault("TRITON_INTERPRET", "1")
else:
    # A test that means the GPU says so.
    os.environ.setdefault("DISTKV_DEVICE", "cpu")
    # Triton 3.9 warns where it is left to its default, and warnings are errors.
    os.environ.setdefault("TRITON_DEFAULT_FP_FUSION", "1")

# On a busy machine everything takes longer, and that is no failure. What is set in CI besides stays as it is.
settings.register_profile("any-load", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("default-lane", settings.get_profile("any-load"), max_examples=50)
settings.load_profile("any-load")

END_WITHIN_S = 20.0
_PR_SET_CHILD_SUBREAPER = 36

LASTING: set[int] = set()
"""Processes that a test started on behalf of a fixture of wider scope, which ends them."""


def pytest_configure(config: pytest.Config) -> None:
    """Tests that say nothing of how many examples they take have half as many as usual, but in the slow lane."""
    if "not slow" in config.option.markexpr:
        settings.load_profile("default-lane")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """What is imported and collected stays: no garbage is looked for meanwhile, nor in it ever again."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """For `-n auto`: a worker that starts processes, which mostly waits, and two beside it; none where paths were
    named."""
    return 3 if config.args_source is pytest.Config.ArgsSource.TESTPATHS else 0


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> object:
    from tests import parallel

    return parallel.Sharing(config, log)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if hasattr(config, "workerinput"):
        from tests import parallel

        items.sort(key=lambda item: parallel.rank_of(item.nodeid))


def pytest_runtest_setup(item: pytest.Item) -> None:
    if hasattr(item.config, "workerinput"):
        from tests import parallel

        parallel.yield_to_processes(item.nodeid)


@pytest.fixture(scope="session", autouse=True)
def adopt_orphans() -> None:
    """Processes whose parent was killed become children of the test run, so that they are seen and ended too."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


@pytest.fixture(scope="session", autouse=True)
def one_torch_thread() -> None:
    """Models of the tests are small, and clusters and other tests share the processors."""
    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def leaves_nothing_behind() -> Iterator[None]:
    """Fails the test that leaks. What fixtures of a wider scope hold is there before and does not count."""
    processes, threads, shared = _processes(), set(threading.enumerate()), _shared_memory()
    yield
    # Sockets that were dropped instead of closed warn when they are collected, and warnings are errors.
    gc.collect(1)
    leaks = _left_processes(processes) + _left_threads(threads)
    if left := _shared_memory() - shared:
        leaks.append(f"shared memory: {sorted(left)}")
    if leaks:
        pytest.fail("left behind: " + "; ".join(leaks), pytrace=False)


@pytest.fixture(autouse=True)
def ends_its_tasks(request: pytest.FixtureRequest, leaves_nothing_behind: None) -> None:
    """Fails a coroutine test that ends before its tasks do; its loop's threads end before the others are counted."""
    if inspect.iscoroutinefunction(getattr(request, "function", None)):
        request.getfixturevalue("no_tasks_left")


@pytest_asyncio.fixture
async def no_tasks_left() -> AsyncIterator[None]:
    before = asyncio.all_tasks()
    yield
    for _turn in range(5):
        await asyncio.sleep(0)
    left = asyncio.all_tasks() - before - {asyncio.current_task()}
    names = sorted(repr(task.get_coro()) for task in left)
    for task in left:
        task.cancel()
    if names:
        pytest.fail(f"left behind: tasks {names}", pytrace=False)


def _processes() -> set[psutil.Process]:
    with contextlib.suppress(ChildProcessError):
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        return _living()
    return set()  # as in most tests: to look at every process of the machine takes milliseconds


def _living() -> set[psutil.Process]:
    found = set()
    for child in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            if child.status() == psutil.STATUS_ZOMBIE:
                _bury(child)
                continue
            lasting = child.pid in LASTING or child.ppid() in LASTING
            tracker = "resource_tracker" in " ".join(child.cmdline())
            if not lasting and not tracker:
                found.add(child)
    return found


def _bury(child: psutil.Process) -> None:
    """Nobody else waits for an orphan that was adopted: it stays in the process group of the parent that is gone. What
    a test starts is in this one, or leads one of its own."""
    with contextlib.suppress(ProcessLookupError, ChildProcessError):  # somebody else of this process was faster
        if child.ppid() == os.getpid() and os.getpgid(child.pid) not in (child.pid, os.getpgrp()):
            os.waitpid(child.pid, os.WNOHANG)


def _left_processes(before: set[psutil.Process]) -> list[str]:
    left = _processes() - before
    if not left:
        return []
    _gone, alive = psutil.wait_procs(list(left), timeout=END_WITHIN_S)
    described = []
    for process in alive:
        with contextlib.suppress(psutil.NoSuchProcess):
            if process.status() != psutil.STATUS_ZOMBIE:
                described.append(f"process {process.pid} {' '.join(process.cmdline())[:200]!r}")
                process.kill()
    return described


def _left_threads(before: set[threading.Thread]) -> list[str]:
    deadline = time.monotonic() + END_WITHIN_S
    left = [thread for thread in threading.enumerate() if thread not in before]
    for thread in left:
        thread.join(max(0.0, deadline - time.monotonic()))
    return [f"thread {thread.name}" for thread in left if thread.is_alive()]


def _shared_memory() -> set[str]:
    """Segments that distkv names; others belong to whoever else uses this machine."""
    return {entry.name for entry in Path("/dev/shm").glob("*distkv*")}
