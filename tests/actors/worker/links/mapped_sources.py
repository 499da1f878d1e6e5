"""Owners of pools that peers map."""

from __future__ import annotations

import contextlib
import threading

from distkv.actors.worker.links.mapped_pools import MappedPools
from distkv.errors import LinkClosed, LinkError, WireError
from distkv.wire.links import TensorLink, attach, listen, serve_read
from distkv.wire.messages.common import Member
from distkv.wire.messages.data import Attach, ReadBlocks
from tests.actors.links import DEADLINE_S, identity
from tests.wire.links.device_pools import SharedPool


class Source:
    """A listener over a pool, and its end of all links."""

    def __init__(self, pool: SharedPool, incarnation: int = 1) -> None:
        self.pool, self.registered = pool, {MappedPools.name: pool.registered()}
        self.listener = listen("127.0.0.1:0", identity("source", incarnation), pool, registered=self.registered)
        self.links: list[TensorLink] = []
        self.reads = 0
        self.malformed: list[str] = []

    @property
    def member(self) -> Member:
        data = self.listener.endpoint
        return Member(instance_id="source", incarnation=1, address="", state="ready", data=data)

    def serve(self) -> None:
        with contextlib.suppress(LinkClosed):
            while True:
                if (link := self.listener.accept(DEADLINE_S)) is not None:
                    self.links.append(link)
                    threading.Thread(target=self._serve, args=(link,)).start()

    def _serve(self, link: TensorLink) -> None:
        try:
            while True:
                header, body = link.recv(DEADLINE_S)
                if isinstance(header, Attach):
                    attach(link, header, body, self.registered)
                else:
                    assert isinstance(header, ReadBlocks)
                    self.reads += 1
                    serve_read(link, header, self.pool)
        except LinkError:
            pass
        except WireError as error:
            self.malformed.append(str(error))
        finally:
            link.abort()

    def close(self) -> None:
        self.listener.close()
        for link in self.links:
            link.abort()
        self.registered[MappedPools.name].close()
