"""A file descriptor given by one process to another of its host: by a Unix socket that serves for one, once.

Frames are read ahead, so nothing but bytes can come with them. Who gives and who takes know each other's process from
the link that they talk by, and the kernel says who is at the other end of the socket; so nobody can step in between.
"""

from __future__ import annotations

import secrets
import socket
import struct
from typing import Self

from distkv.wire.links.memory.pool_memory import PoolUnmappable
from distkv.wire.links.streams.byte_stream import peer_pid

_BACKLOG = 8
_INT = struct.Struct("i")


class DescriptorIntake:
    """Where a peer gives a descriptor. name: of an abstract Unix socket, without the leading zero byte."""

    def __init__(self) -> None:
        self.name = f"distkv-descriptor-{secrets.token_hex(16)}"
        self._listening = socket.socket(socket.AF_UNIX)
        self._listening.setblocking(False)
        self._listening.bind(f"\0{self.name}")
        self._listening.listen(_BACKLOG)

    def take(self, pid: int) -> int:
        """What this process has given; nobody is waited for. The caller closes it. Raises PoolUnmappable."""
        for _ in range(_BACKLOG + 1):
            try:
                sock, _address = self._listening.accept()
            except OSError:
                break
            with sock:
                if peer_pid(sock) != pid:
                    continue
                sock.setblocking(False)
                try:
                    # Python's own recv_fds leaves out the flag.
                    _byte, told, *_ = sock.recvmsg(1, socket.CMSG_LEN(_INT.size), socket.MSG_CMSG_CLOEXEC)
                except OSError as error:
                    raise PoolUnmappable(f"its descriptor did not come: {error.strerror}") from None
                for level, kind, content in told:
                    if (level, kind, len(content)) == (socket.SOL_SOCKET, socket.SCM_RIGHTS, _INT.size):
                        return int(_INT.unpack(content)[0])
                break
        raise PoolUnmappable("it gave no descriptor")

    def close(self) -> None:
        """Nothing is taken any more."""
        self._listening.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def give(descriptor: int, name: str, pid: int | None) -> str:
    """Give a descriptor to this process, which takes it at the socket of this name; nobody is waited for. Returns why
    that cannot be, "" if it could."""
    with socket.socket(socket.AF_UNIX) as sock:
        sock.setblocking(False)
        try:
            sock.connect(f"\0{name}")
            if peer_pid(sock) != pid:
                return "the socket for the descriptor is another process's"
            socket.send_fds(sock, [b"\0"], [descriptor])
        except (OSError, ValueError) as error:
            return f"the descriptor cannot be given: {error}"
    return ""
