"""Servers that speak as vLLM's API server does, and the router in front of them."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import tempfile
import textwrap
from multiprocessing import shared_memory
from pathlib import Path

import psutil
import pytest

from distkv.bench.baselines.process import BaselineFailed
from distkv.bench.baselines.shared_memory import SHM
from distkv.bench.baselines.vllm_servers import Router, VllmServers
from distkv.bench.workloads.replay import replay
from distkv.errors import RequestFailed
from distkv.sim.trace import TraceRequest
from tests.waiting import wait_until

FAKE = """
    import json, os, subprocess, sys
    from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

    given = dict(one.removeprefix("--").split("=", 1) for one in sys.argv[1:] if "=" in one)
    if given["max-model-len"] == "66":
        sys.exit("there is no such memory")

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            text = b"vllm:num_preemptions_total{engine=\\"0\\"} 2.0\\nvllm:num_preemptions_created{} 1.7e9\\n"
            self.answer(200, text if self.path == "/metrics" else b"")

        def do_POST(self):
            asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
            assert asked["model"] == given["served-model-name"] and asked["ignore_eos"] and asked["return_token_ids"]
            if asked["max_tokens"] > int(given["max-model-len"]):
                return self.answer(400, b"too long")
            ids = list(range(asked["max_tokens"]))
            parts = [ids[:1], ids[1:3], ids[3:]]
            events = [json.dumps({"choices": [{"text": "", "token_ids": part}], "more": 1}) for part in parts if part]
            self.answer(200, "".join(f"data: {event}\\n\\n" for event in [*events, "[DONE]"]).encode())

        def answer(self, status, body):
            self.send_response(status)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *arguments):
            pass

    assert os.environ["VLLM_CPU_OMP_THREADS_BIND"] in "01"
    if "TEST_HOLDER" in os.environ:
        holder = subprocess.Popen([sys.executable, os.environ["TEST_HOLDER"]], stdout=subprocess.PIPE)
        holder.stdout.readline()
    ThreadingHTTPServer((given["host"], int(given["port"])), Handler).serve_forever()
"""


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    package = tmp_path / "vllm" / "entrypoints" / "openai"
    package.mkdir(parents=True)
    for directory in (package, package.parent, package.parent.parent):
        (directory / "__init__.py").touch()
    (package / "api_server.py").write_text(textwrap.dedent(FAKE))
    return {"PYTHONPATH": str(tmp_path)}


def servers(environment: dict[str, str], longest: int = 50) -> VllmServers:
    return VllmServers(
        Path(sys.executable),
        Path("model"),
        cores=(0, 1),
        kv_tokens=128,
        token_bytes=32,
        longest=longest,
        environment=environment,
        start_s=30.0,
    )


@pytest.mark.timeout(60)
def test_requests_stream_through_the_router_and_what_a_server_refuses_is_told(environment: dict[str, str]) -> None:
    started = servers(environment)
    try:
        requests = [TraceRequest(0.0, 4, count) for count in (1, 7, 51)]

        async def play() -> list[tuple[int, str]]:
            async with started.serving() as generate:
                return [(len(one.times_s), one.failed) for one in await replay(generate, requests, 99, 20.0, "0")]

        assert asyncio.run(play()) == [(1, ""), (7, ""), (0, "RequestFailed")]
        for command in started.settings["commands"]:
            assert {"--max-model-len=50", "--kv-cache-memory-bytes=4096"} <= set(command)
        assert started.counters() == {"preemptions": 4.0}
        assert len({one for command in started.settings["commands"] for one in command if "--port" in one}) == 2
        json.dumps(str(started.settings))
    finally:
        started.close()
        started.close()


@pytest.mark.timeout(60)
def test_one_that_does_not_start_says_why(environment: dict[str, str]) -> None:
    with pytest.raises(BaselineFailed, match="there is no such memory"):
        servers(environment, longest=66)


@pytest.mark.timeout(60)
def test_a_request_may_be_as_long_as_the_blocks_but_one(environment: dict[str, str]) -> None:
    started = servers(environment, longest=1000)
    started.close()
    assert all("--max-model-len=96" in command for command in started.settings["commands"])


HOLDER = """
    import os, signal
    from multiprocessing import get_context, shared_memory

    block, lock = shared_memory.SharedMemory(create=True, size=64), get_context("spawn").Lock()
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    with open(os.environ["TEST_HELD"], "a") as file:
        file.write(f"{block.name}\\n")
        file.write(f"sem.{lock._semlock.name.lstrip('/')}\\n")
    print(flush=True)
    signal.pause()
"""


@pytest.mark.timeout(60)
@pytest.mark.parametrize("is_killed", [False, True])
def test_shared_memory_of_servers_goes_with_them_and_no_other(
    environment: dict[str, str], tmp_path: Path, is_killed: bool
) -> None:
    """Made by a child of each server, which is killed with it. Whose maps are empty by then had been looked at."""
    (holder := tmp_path / "holder.py").write_text(textwrap.dedent(HOLDER))
    (held := tmp_path / "held").touch()
    others = shared_memory.SharedMemory(create=True, size=64)
    try:
        started = servers(environment | {"TEST_HOLDER": str(holder), "TEST_HELD": str(held)})
        files = [SHM / name for name in held.read_text().split()]
        assert len(files) == 4 and all(file.exists() for file in files)
        if is_killed:
            for process in psutil.Process().children():
                if _is_of(process, environment["PYTHONPATH"]):
                    os.killpg(process.pid, signal.SIGKILL)
        started.close()
        assert not any(file.exists() for file in files)
        assert (SHM / others.name).exists()
    finally:
        others.close()
        others.unlink()


@pytest.mark.timeout(60)
def test_servers_end_with_who_started_them(environment: dict[str, str], tmp_path: Path) -> None:
    child = os.fork()
    if not child:
        tempfile.tempdir = str(tmp_path)  # nobody is there to remove their logs
        servers(environment)
        os._exit(0)
    os.waitpid(child, 0)
    ours = environment["PYTHONPATH"]
    wait_until(lambda: not any(_is_of(one, ours) for one in psutil.process_iter()))


def _is_of(process: psutil.Process, path: str) -> bool:
    try:
        return process.environ().get("PYTHONPATH") == path
    except psutil.Error:
        return False


async def test_the_router_takes_the_server_with_the_fewest_and_counts_down() -> None:
    release, all_came = asyncio.Event(), asyncio.Event()
    seen: list[int] = []

    async def serve(index: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.append(index)
        if len(seen) == 4:
            all_came.set()
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b'HTTP/1.0 200 OK\r\n\r\ndata: {"choices": [{"token_ids": [1]}]}\n\n')
        await release.wait()
        writer.write(b"data: [DONE]\n\n")
        writer.close()

    async def take(router: Router) -> int:
        return sum([count async for count in router.generate([1], 1)])

    listening = [
        await asyncio.start_server(lambda r, w, index=index: serve(index, r, w), "127.0.0.1", 0) for index in (0, 1)
    ]
    try:
        router = Router([one.sockets[0].getsockname()[1] for one in listening])
        running = [asyncio.ensure_future(take(router)) for _ in range(4)]
        async with asyncio.timeout(30):
            await all_came.wait()
        assert sorted(seen) == [0, 0, 1, 1]
        release.set()
        assert await asyncio.gather(*running) == [1, 1, 1, 1]
        assert await take(router) == 1 and sorted(seen) == [0, 0, 0, 1, 1]
    finally:
        for one in listening:
            one.close()
            await one.wait_closed()


async def test_a_connection_that_ends_early_failed() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.0 200 OK\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(RequestFailed, match="its connection was closed"):
            _ = [count async for count in Router([port]).generate([1], 1)]
        server.close()
    with pytest.raises(RequestFailed):
        _ = [count async for count in Router([port]).generate([1], 1)]
