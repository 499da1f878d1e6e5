"""A gateway in a loop of its own, for clients that block the test's thread."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from distkv.client.background import BackgroundLoop
from tests.client.fakes import Serve
from tests.gateway.harness import started


@contextmanager
def served(model: Path, *serves: Serve, **settings: Any) -> Iterator[str]:
    """The URL of a gateway before fakes."""
    loop = BackgroundLoop("gateway")
    try:
        gateway = started(model, *serves, **settings)
        url = loop.call(_enter(gateway))
        try:
            yield url
        finally:
            loop.call(_leave(gateway))
    finally:
        loop.stop()


async def _enter(gateway: Any) -> str:
    return str((await gateway.__aenter__()).url)


async def _leave(gateway: Any) -> None:
    await gateway.__aexit__(None, None, None)
