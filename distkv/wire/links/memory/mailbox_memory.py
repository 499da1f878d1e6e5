"""The memory of a mailbox: a file in memory that a debtor's worker makes and a creditor's worker on its host maps, too.

Both write into it, unlike into a pool; what lies there is queries and partials of one layer, and counts only as long as
the link lives that it belongs to. It outlives either process, so nobody reads into the void.
"""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
import secrets
from typing import Annotated

import msgspec
from msgspec import Meta

from distkv.errors import MalformedMessage
from distkv.wire.links.memory.pool_memory import PoolUnmappable, map_peer
from distkv.wire.messages.common import Value

MAX_MAILBOX_BYTES = 64 * 2**20
"""That a peer may have mapped here."""

_NAME_PREFIX = "distkv-mailbox-"
_LINE_BYTES = 128
"""Words that different ends write lie so far apart."""

_Size = Annotated[int, Meta(ge=0, le=MAX_MAILBOX_BYTES)]


class MailboxPlace(Value, frozen=True):
    """Body of `Attach` to "mailbox", in JSON: the process and the descriptor in it that hold the memory, its random
    name, and how many bytes of queries and of partials it has room for, each a multiple of 128."""

    pid: int
    fd: int
    token: str
    query_bytes: _Size
    partial_bytes: _Size


class MailboxMemory:
    """view: all of it, writable, zeroed at first.

    Where in it what lies: queries_flag_at and partials_flag_at, int64, the number of the newest body of each lane;
    halt_at, int64, not 0 once a host has ended it; queries_at, query_bytes, partials_at, partial_bytes: the bodies.
    """

    queries_flag_at = 0
    partials_flag_at = _LINE_BYTES
    halt_at = 2 * _LINE_BYTES
    queries_at = 4 * _LINE_BYTES

    def __init__(self, memory: mmap.mmap, query_bytes: int, partial_bytes: int, fd: int = -1, token: str = "") -> None:
        """See `make_mailbox` and `map_mailbox`."""
        self.view = memoryview(memory)
        self.query_bytes, self.partial_bytes = query_bytes, partial_bytes
        self._fd, self._token = fd, token

    @property
    def partials_at(self) -> int:
        """See MailboxMemory."""
        return self.queries_at + self.query_bytes

    def place(self) -> bytes:
        """The body of `Attach` that lets a peer map it."""
        place = MailboxPlace(
            pid=os.getpid(),
            fd=self._fd,
            token=self._token,
            query_bytes=self.query_bytes,
            partial_bytes=self.partial_bytes,
        )
        return msgspec.json.encode(place)

    def forget(self) -> None:
        """The peer has it, or will not: what is mapped stays, the descriptor goes."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def halt(self) -> None:
        """End all waits for it, at both ends, for good. From any thread, more than once."""
        self.view[self.halt_at : self.halt_at + 8] = (1).to_bytes(8, "little")


def make_mailbox(query_bytes: int, partial_bytes: int) -> MailboxMemory:
    """Memory for so many bytes at least. Raises OSError when there is none."""
    query_bytes, partial_bytes = (-(-size // _LINE_BYTES) * _LINE_BYTES for size in (query_bytes, partial_bytes))
    token = _NAME_PREFIX + secrets.token_hex(16)
    fd = os.memfd_create(token, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        size_bytes = MailboxMemory.queries_at + query_bytes + partial_bytes
        os.ftruncate(fd, size_bytes)
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
        return MailboxMemory(mmap.mmap(fd, size_bytes, mmap.MAP_SHARED), query_bytes, partial_bytes, fd, token)
    except BaseException:
        with contextlib.suppress(OSError):
            os.close(fd)
        raise


def map_mailbox(body: bytes | memoryview) -> MailboxMemory:
    """That of a peer. Raises MalformedMessage for a body that is no MailboxPlace, PoolUnmappable."""
    try:
        place = msgspec.json.decode(body, type=MailboxPlace)
    except (msgspec.ValidationError, msgspec.DecodeError) as error:
        raise MalformedMessage(f"a mailbox: {error}") from None
    size_bytes = MailboxMemory.queries_at + place.query_bytes + place.partial_bytes
    if size_bytes > MAX_MAILBOX_BYTES or place.query_bytes % _LINE_BYTES or place.partial_bytes % _LINE_BYTES:
        raise PoolUnmappable(f"a mailbox of {place.query_bytes} and {place.partial_bytes} bytes")
    memory = map_peer(place.pid, place.fd, size_bytes, place.token, mmap.PROT_READ | mmap.PROT_WRITE)
    return MailboxMemory(memory, place.query_bytes, place.partial_bytes)
