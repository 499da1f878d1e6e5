"""Starting, TLS, leaving in good order."""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from distkv.config import GatewayConfig, build
from distkv.errors import ConfigError
from distkv.gateway import process
from distkv.wire.messages.to_rmanager import Cancel, Submit
from tests.gateway.harness import chunk, error_of, events_of, first_words, started, until

Start = Callable[..., Any]


async def test_requests_that_run_are_finished(start: Start, checkpoint: Path) -> None:
    submits: list[Any] = []

    def later(instance: Any, route: bytes, submit: Submit) -> list[Any]:
        submits.append((instance, route, submit))
        return [chunk(submit, 40, text="a ")]

    async with started(checkpoint, later, drain_wait_s=1.5) as gateway:
        async with gateway.http.stream("POST", "/v1/completions", json={"prompt": "x", "stream": True}) as answer:
            lines = answer.aiter_lines()
            assert "a " in await anext(lines)
            gateway.stop.set()
            await until(lambda: _is_draining(gateway))
            # Whoever has not noticed yet is still served.
            whole = asyncio.create_task(gateway.complete("late"))
            await gateway.fakes.instances[0].wait_for(Submit, 2)
            await until(lambda: _is_refused(gateway))
            for instance, route, submit in submits:
                instance.say(route, chunk(submit, 41, text="b", finish="stop"))
            rest = [line async for line in lines if line]
        assert rest[-1] == "data: [DONE]" and '"text":"b"' in rest[-2]
        assert (await whole).json()["choices"][0]["text"] == "a b"
        assert await gateway.task == 0


async def _is_draining(gateway: Any) -> bool:
    answer = await gateway.http.get("/health")
    return bool(answer.status_code == 503 and answer.json() == {"status": "draining"})


async def _is_refused(gateway: Any) -> bool:
    answer = await gateway.http.get("/v1/models")
    if answer.status_code == 503:
        error_of(answer, 503, None, "draining")
        assert answer.headers["connection"] == "close"
    return bool(answer.status_code == 503)


async def test_requests_that_run_too_long_end_with_an_error(checkpoint: Path) -> None:
    async with started(checkpoint, first_words, shutdown_timeout_s=0.1) as gateway:
        whole = asyncio.create_task(gateway.complete())
        stream = asyncio.create_task(gateway.events("/v1/completions", prompt="x"))
        await gateway.fakes.instances[0].wait_for(Submit, 2)
        await until(lambda: _has_begun(gateway))
        gateway.stop.set()
        error_of(await whole, 503, None, "draining")
        _, failure, done = await stream
        assert failure["error"]["code"] == "draining" and done == "[DONE]"
        assert await gateway.task == 0
        await gateway.fakes.instances[0].wait_for(Cancel, 2)


async def _has_begun(gateway: Any) -> bool:
    text = (await gateway.http.get("/metrics")).text
    return 'distkv:generation_tokens_total{model_name="tiny"} 2.0' in text


async def test_a_port_that_is_taken(checkpoint: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        config = build(GatewayConfig, {"model": str(checkpoint), "port": port})
        with pytest.raises(ConfigError, match=f"port: cannot listen on 127.0.0.1:{port}"):
            await process.run(config, lambda facts: None, asyncio.Event())


async def test_a_host_that_is_not_ours(checkpoint: Path) -> None:
    config = build(GatewayConfig, {"model": str(checkpoint), "host": "203.0.113.1", "insecure": True, "port": 0})
    with pytest.raises(ConfigError, match=r"port: cannot listen on 203\.0\.113\.1"):
        await process.run(config, lambda facts: None, asyncio.Event())


async def test_a_cancelled_gateway_ends(checkpoint: Path) -> None:
    ready = asyncio.Event()
    config = build(GatewayConfig, {"model": str(checkpoint), "port": 0})
    task = asyncio.create_task(process.run(config, lambda facts: ready.set(), asyncio.Event()))
    await asyncio.wait_for(ready.wait(), 20)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


@pytest.fixture
def secret_key(certificate: tuple[Path, Path], tmp_path: Path) -> Path:
    """The key of the certificate, with a password."""
    found = tmp_path / "secret.pem"
    how = ["-aes256", "-passout", "pass:sesame"]
    subprocess.run(["openssl", "rsa", *how, "-in", certificate[1], "-out", found], check=True, capture_output=True)
    return found


async def test_tls(start: Start, certificate: tuple[Path, Path]) -> None:
    cert, key = certificate
    gateway = await start(ssl_certfile=str(cert), ssl_keyfile=str(key))
    assert gateway.url.startswith("https://")
    trusted = ssl.create_default_context(cafile=cert)
    async with httpx.AsyncClient(base_url=gateway.url, verify=trusted, timeout=60) as http:
        answer = await http.post(
            "/v1/completions", content=json.dumps({"prompt": "x", "stream": True, "max_tokens": 1})
        )
        assert answer.status_code == 200 and events_of(answer.text)[-1] == "[DONE]"


@pytest.mark.parametrize("wrong", ["ssl_certfile", "ssl_keyfile"])
async def test_tls_files_that_cannot_be_used(
    checkpoint: Path, certificate: tuple[Path, Path], tmp_path: Path, wrong: str
) -> None:
    files = dict(zip(("ssl_certfile", "ssl_keyfile"), map(str, certificate), strict=True))
    settings = {"model": str(checkpoint), "port": 0, **files}
    config = build(GatewayConfig, settings | {wrong: str(tmp_path / "none.pem")})
    with pytest.raises(ConfigError, match=rf"{wrong}: .*none\.pem cannot be read: No such file"):
        await process.run(config, lambda facts: None, asyncio.Event())
    (tmp_path / "bad.pem").write_text("nonsense")
    config = build(GatewayConfig, settings | {wrong: str(tmp_path / "bad.pem")})
    with pytest.raises(ConfigError, match="no certificate and its key"):
        await process.run(config, lambda facts: None, asyncio.Event())


async def test_a_key_with_a_password_is_refused_and_nobody_is_asked_for_it(
    checkpoint: Path, certificate: tuple[Path, Path], secret_key: Path
) -> None:
    files = {"ssl_certfile": str(certificate[0]), "ssl_keyfile": str(secret_key)}
    config = build(GatewayConfig, {"model": str(checkpoint), "port": 0, **files})
    with pytest.raises(ConfigError, match=r"secret\.pem are no certificate and its key without a password"):
        await process.run(config, lambda facts: None, asyncio.Event())
