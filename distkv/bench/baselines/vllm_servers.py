"""Instances of vLLM behind a router that sends each request to the one with the fewest: replicas as they are served
today, each with its own KV memory."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import urlopen

import msgspec

from distkv.bench.baselines.process import START_S, STOP_S, BaselineFailed, has_ended, wait_for_exit
from distkv.bench.baselines.shared_memory import SharedMemory
from distkv.bench.workloads.replay import Generate
from distkv.errors import RequestFailed

LOOPBACK = "127.0.0.1"
NAME = "model"
LINE_BYTES = 2**22
"""Longest line of a stream: the first event has the prompt's ids."""
LOOK_S = 0.5
PR_SET_PDEATHSIG = 1
BLOCK_TOKENS = 32
"""The least that its CPU kernels are made for; the 128 that it takes otherwise waste more of a small pool."""
ERROR = re.compile(r"\bERROR\b.*\b\w+(Error|Exception): ")
PREEMPTIONS = re.compile(rb"^vllm:num_preemptions_total\S* (\S+)$", re.MULTILINE)


class _Choice(msgspec.Struct):
    token_ids: list[int] = []


class _Event(msgspec.Struct):
    choices: list[_Choice] = []


class Router:
    """Sends completions to HTTP servers, each to the one that has the fewest; ports are on loopback."""

    def __init__(self, ports: Sequence[int]) -> None:
        self._open = dict.fromkeys(ports, 0)

    async def generate(self, prompt: list[int], max_tokens: int) -> AsyncIterator[int]:
        """See Generate. Raises RequestFailed with what the server says."""
        port = min(self._open, key=self._open.__getitem__)
        self._open[port] += 1
        try:
            async for count in _stream(port, prompt, max_tokens):
                yield count
        finally:
            self._open[port] -= 1


class VllmServers:
    """vLLM's API server once per core of `cores`, each with KV memory for `kv_tokens` of `token_bytes`; ready once it
    is constructed. longest: most tokens of a request. `close` it. Raises BaselineFailed with what one wrote."""

    def __init__(
        self,
        python: Path,
        model: Path,
        *,
        cores: Sequence[int],
        kv_tokens: int,
        token_bytes: int,
        longest: int,
        environment: Mapping[str, str],
        start_s: float = START_S,
    ) -> None:
        self._ports = [_free_port() for _ in cores]
        self._logs = Path(tempfile.mkdtemp(prefix="distkv-vllm-"))
        self._processes: list[subprocess.Popen[bytes]] = []
        self._shared_memory = SharedMemory()
        options = {
            "model": model,
            "served-model-name": NAME,
            "host": LOOPBACK,
            "dtype": "bfloat16",
            # One block is never given out, and what the others do not hold is refused at the start.
            "max-model-len": min(longest, (kv_tokens // BLOCK_TOKENS - 1) * BLOCK_TOKENS),
            "max-num-seqs": 64,
            "block-size": BLOCK_TOKENS,
            "kv-cache-memory-bytes": kv_tokens * token_bytes,
        }
        arguments = [f"--{name}={value}" for name, value in options.items()] + [
            "--skip-tokenizer-init",
            "--disable-uvicorn-access-log",
        ]
        own = {"VLLM_NO_USAGE_STATS": "1", "VLLM_LOGGING_LEVEL": "WARNING", "HF_HUB_OFFLINE": "1"}
        commands = [
            [str(python), "-m", "vllm.entrypoints.openai.api_server", f"--port={port}", *arguments]
            for port in self._ports
        ]
        self.settings: dict[str, Any] = {"commands": commands, "environment": own, "VLLM_CPU_OMP_THREADS_BIND": cores}
        try:
            for core, port, command in zip(cores, self._ports, commands, strict=True):
                with self._log(port).open("wb") as log:
                    bound = own | {"VLLM_CPU_OMP_THREADS_BIND": str(core)}
                    process = subprocess.Popen(
                        command,
                        stdout=log,
                        stderr=log,
                        env={**environment, **bound},
                        start_new_session=True,
                        preexec_fn=_end_with_parent,
                    )
                    self._processes.append(process)
            self._wait_ready(start_s)
            self._note_shared_memory()
        except BaseException:
            self.close(stop_s=0)
            raise

    def serving(self) -> AbstractAsyncContextManager[Generate]:
        """Through the router."""
        return contextlib.nullcontext(Router(self._ports).generate)

    def counters(self) -> Mapping[str, float]:
        """Preemptions of all servers; nothing if one of them does not answer."""
        try:
            return {"preemptions": sum(_preemptions(port) for port in self._ports)}
        except OSError:
            return {}

    def close(self, stop_s: float = STOP_S) -> None:
        """End the servers within stop_s, all that they started, and the shared memory of these; safe to call twice."""
        self._note_shared_memory()
        for process in self._processes:
            if process.returncode is None:
                process.send_signal(signal.SIGTERM)
        for process in self._processes:
            if process.returncode is None:
                # Not reaped yet, so that its process group keeps its number.
                wait_for_exit(process.pid, stop_s)
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        self._shared_memory.remove()
        shutil.rmtree(self._logs, ignore_errors=True)

    def _note_shared_memory(self) -> None:
        for process in self._processes:
            if process.returncode is None:
                self._shared_memory.note(process.pid)

    def _wait_ready(self, start_s: float) -> None:
        deadline_s = time.monotonic() + start_s
        for port, process in zip(self._ports, self._processes, strict=True):
            while not _is_ready(port):
                if has_ended(process.pid):
                    raise BaselineFailed(f"it ended: {self._last_words(port)}")
                if time.monotonic() > deadline_s:
                    raise BaselineFailed(f"not ready within {start_s:,.0f} s: {self._last_words(port)}")
                time.sleep(LOOK_S)

    def _log(self, port: int) -> Path:
        return self._logs / f"{port}.log"

    def _last_words(self, port: int) -> str:
        """The first error that it wrote, since others follow from it; or else its last line."""
        lines = self._log(port).read_text(encoding="utf-8", errors="replace").split("\n")
        written = [line.strip() for line in lines if line.strip()]
        return next((line for line in written if ERROR.search(line)), written[-1] if written else "it wrote nothing")


def _end_with_parent() -> None:
    """In a child: SIGTERM when the benchmark dies, however it does."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


async def _stream(port: int, prompt: list[int], max_tokens: int) -> AsyncIterator[int]:
    body = msgspec.json.encode(
        {
            "model": NAME,
            "prompt": prompt,
            "max_tokens": max_tokens,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
            "return_token_ids": True,
        }
    )
    # As of HTTP/1.0 a response is not in chunks and ends with its connection.
    head = f"POST /v1/completions HTTP/1.0\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    try:
        reader, writer = await asyncio.open_connection(LOOPBACK, port, limit=LINE_BYTES)
        try:
            writer.write(head.encode() + body)
            status = await reader.readline()
            while (await reader.readline()).strip():
                pass
            if status.split()[1:2] != [b"200"]:
                raise RequestFailed(False, (await reader.read()).decode("utf-8", errors="replace"))
            while (line := await reader.readline()) != b"data: [DONE]\n":
                if not line:
                    raise RequestFailed(True, "its connection was closed")
                if line.startswith(b"data: {"):
                    event = msgspec.json.decode(line.removeprefix(b"data: "), type=_Event)
                    yield sum(len(choice.token_ids) for choice in event.choices)
        finally:
            writer.close()
    except (OSError, ValueError) as error:
        raise RequestFailed(True, str(error)) from None


def _is_ready(port: int) -> bool:
    try:
        with urlopen(f"http://{LOOPBACK}:{port}/health", timeout=5) as response:
            return bool(response.status == 200)
    except (URLError, OSError):
        return False


def _preemptions(port: int) -> float:
    with urlopen(f"http://{LOOPBACK}:{port}/metrics", timeout=30) as response:
        return sum(map(float, PREEMPTIONS.findall(response.read())))


def _free_port() -> int:
    with socket.socket() as free:
        free.bind((LOOPBACK, 0))
        return int(free.getsockname()[1])
