from __future__ import annotations

import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from distkv import LocalCluster
from distkv.demo.random_checkpoint import make_checkpoint
from tests.checkpoints import TEXT, edit_config
from tests.client.fakes import Serve
from tests.gateway.harness import MODEL, Gateway, speak, started

TEMPLATE = (
    "{% for message in messages %}{{ '<|' + message['role'] + '|>' + message['content'] + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)

TOOL_TEMPLATE = (
    "{% for tool in tools or [] %}{{ tool | tojson }} <tool_call>{% endfor %}"
    "{% for message in messages %}{{ message.role }}:{{ message.content }}"
    "{% for call in message.tool_calls or [] %}{{ call.id }} {{ call.function.name }}"
    "({{ call.function.arguments.x }}){% endfor %}{{ message.tool_call_id }} {{ message.name }}|{% endfor %}"
)


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny Llama with a tokenizer and a chat template."""
    path = make_checkpoint(tmp_path_factory.mktemp("gateway") / "model", vocab=320, text_for_tokenizer=TEXT)
    (path / "chat_template.jinja").write_text(TEMPLATE)
    return path


@pytest.fixture(scope="session")
def calling(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same with a template that shows tools, in Hermes's format."""
    path = tmp_path_factory.mktemp("calling")
    for file in checkpoint.glob("*.json"):
        (path / file.name).write_bytes(file.read_bytes())
    (path / "chat_template.jinja").write_text(TOOL_TEMPLATE)
    return path


@pytest.fixture(scope="session")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny Llama without a tokenizer."""
    return make_checkpoint(tmp_path_factory.mktemp("gateway") / "bare", vocab=320)


@pytest.fixture(scope="package")
def lasting(checkpoint: Path) -> Iterator[LocalCluster]:
    """Two instances of 512 tokens and a gateway."""
    options = {"served_model_name": MODEL}
    with LocalCluster(
        checkpoint, 2, 512, dtype="float32", threads=1, validate_state=True, gateway_options=options
    ) as cluster:
        yield cluster


@pytest.fixture
def with_defaults(checkpoint: Path, tmp_path: Path) -> Callable[..., Path]:
    """Copies the checkpoint with more in its generation_config.json."""

    def copy(**more: Any) -> Path:
        path = tmp_path / "model"
        path.mkdir()
        for file in checkpoint.glob("*.json*"):
            (path / file.name).write_bytes(file.read_bytes())
        edit_config(path, lambda raw: raw.update(more), "generation_config.json")
        return path

    return copy


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A certificate for localhost and its key."""
    path = tmp_path_factory.mktemp("tls")
    cert, key = path / "cert.pem", path / "key.pem"
    how = ["-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"]
    how += ["-addext", "subjectAltName=IP:127.0.0.1"]
    subprocess.run(["openssl", "req", *how, "-keyout", key, "-out", cert], check=True, capture_output=True)
    return cert, key


@pytest.fixture
async def start(checkpoint: Path) -> AsyncIterator[Callable[..., Awaitable[Gateway]]]:
    """Starts gateways before fakes: one instance per `serve`, which speaks if none is given."""
    async with AsyncExitStack() as stack:

        async def start_one(*serves: Serve, model: Path = checkpoint, **settings: Any) -> Gateway:
            return await stack.enter_async_context(started(model, *(serves or (speak,)), **settings))

        yield start_one
