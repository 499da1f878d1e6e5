"""The client that attacks: sends what an attack consists of, and counts what it is answered."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import cast

from distkv.bench.attacks.requests import Attack

LEFT = "no answer"


async def play(attack: Attack, host: str, port: int) -> Counter[str]:
    """All of it at once, until each is answered or has left; how many were answered with which status."""
    loop = asyncio.get_running_loop()
    deadline_s = loop.time() + attack.leaves_s
    return Counter(await asyncio.gather(*(_request(raw, host, port, deadline_s) for raw in attack.raw)))


async def _request(raw: bytes, host: str, port: int, deadline_s: float) -> str:
    """The status of the answer, or what came instead."""
    loop = asyncio.get_running_loop()
    connection = _Connection(raw)
    try:
        async with asyncio.timeout_at(deadline_s):
            await loop.create_connection(lambda: connection, host, port)
            return await connection.status
    except TimeoutError:
        return LEFT
    except OSError as error:
        return str(error.strerror or error)
    finally:
        connection.cut()


class _Connection(asyncio.Protocol):
    """status: of the answer, when all of it has come."""

    def __init__(self, raw: bytes) -> None:
        self.status: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._raw, self._begin = raw, b""
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send it."""
        self._transport = cast("asyncio.Transport", transport)
        self._transport.write(self._raw)

    def data_received(self, data: bytes) -> None:
        """Keep the beginning."""
        self._begin = (self._begin + data)[:16]

    def connection_lost(self, error: Exception | None) -> None:
        """The answer is over, if there was one."""
        if not self.status.done():
            said = self._begin[9:12].decode("latin-1")
            self.status.set_result(said or "the connection was lost")

    def cut(self) -> None:
        """It is not needed any more."""
        if self._transport is not None:
            self._transport.abort()
