"""docs/gateway.md says what the gateway does, and its examples run."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from distkv import LocalCluster
from distkv.gateway.schema.openapi import OPERATIONS
from distkv.gateway.schema.requests import (
    REFUSED_CHAT,
    REFUSED_COMPLETION,
    REFUSED_TEXT,
    ChatRequest,
    CompletionRequest,
)
from tests.conftest import LASTING
from tests.gateway.operations.test_metrics import Start, scrape

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "gateway.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```(\w*)\n(.*?)```", PAGE, re.DOTALL)


def test_every_field_is_told() -> None:
    named = set(re.findall(r"`(\w+)`", PAGE))
    taken = {*CompletionRequest.__struct_fields__, *ChatRequest.__struct_fields__}
    assert taken <= named
    assert {*REFUSED_COMPLETION, *REFUSED_CHAT, *REFUSED_TEXT} <= named


def test_every_endpoint_is_told() -> None:
    for one in OPERATIONS:
        assert f"`{one.method.upper()} {one.path}`" in PAGE


def test_every_code_is_told() -> None:
    source = "".join(path.read_text() for path in (ROOT / "distkv" / "gateway").rglob("*.py"))
    codes = set(re.findall(r'code="(\w+)"', source)) | set(re.findall(r'unavailable\([^)]*"(\w+)"', source))
    assert codes and all(f"`{code}`" in PAGE for code in codes)


async def test_every_metric_is_told(start: Start) -> None:
    gateway = await start()
    await gateway.complete()
    kinds, _ = await scrape(gateway)
    for name, kind in kinds.items():
        if not name.startswith("process_"):
            written = f"`{name}_total`" if kind == "counter" else f"`{name}`"
            assert any(written in line and f"| {kind} |" in line for line in PAGE.splitlines()), written


def here(text: str, cluster: LocalCluster) -> str:
    """As the page has it, but for where it is served and which model is."""
    return text.replace("http://127.0.0.1:8000", cluster.http_url).replace('"demo"', '"tiny"')


@pytest.mark.slow
def test_the_python_examples_run(lasting: LocalCluster) -> None:
    first, calls, outputs = (text for language, text in BLOCKS if language == "python")
    assert re.search(r"\d+ tokens\n\[None, -", ran(first, lasting))
    assert re.match(r"get_weather \{'city': .*\}", ran(calls, lasting))
    assert re.fullmatch(r" \d{5}\n (red|green)\ncode='\d{5}'\n", ran(outputs, lasting))
    # What checks grammars for them stays as long as the cluster.
    LASTING.update(child.pid for one in psutil.Process().children() for child in one.children())


def ran(code: str, cluster: LocalCluster) -> str:
    """What an example prints."""
    command = [sys.executable, "-c", here(code, cluster)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")
def test_the_curl_examples_run(lasting: LocalCluster) -> None:
    (text,) = [text for language, text in BLOCKS if language == "console"]
    answers: list[Any] = []
    for line in here(text, lasting).splitlines():
        command = line.removeprefix("$ ")
        answers.append(
            subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=60, check=True).stdout
        )
    whole, stream, tokens = answers
    assert '"finish_reason":"length"' in whole and stream.endswith("data: [DONE]\n\n") and '"count":' in tokens
