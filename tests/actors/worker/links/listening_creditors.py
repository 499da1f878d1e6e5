"""Creditors behind real listeners, and a debtor that asks them."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable

from distkv.actors.worker.links.link_server import LinkServer
from distkv.actors.worker.links.peer_links import PeerLinks
from distkv.engine.step.runner import StepRunner
from distkv.errors import DistKVError, LinkClosed
from distkv.types import Transport
from distkv.wire.links import PoolMemory, TensorLink, listen
from distkv.wire.messages.common import Member
from distkv.wire.messages.data import OutDtype
from tests.actors.links import DEADLINE_S, identity
from tests.engine.harness import Engine


class Creditors:
    """Creditors x and y of an engine behind listeners; `serve` is what the thread of each link does."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._memory = PoolMemory(engine.pool.slot_bytes, 1)
        self._stack = contextlib.ExitStack()
        self._stack.callback(self._memory.close)
        self.members: list[Member] = []

    def add(self, name: str, serve: Callable[[TensorLink], None] | None = None) -> None:
        """serve: instead of what a worker does."""
        listener = listen("127.0.0.1:0", identity(name), self._memory)
        self.members.append(Member(instance_id=name, incarnation=1, address="", state="ready", data=listener.endpoint))
        server = LinkServer(listener, self.engine.peers.creditors[name].server, self._memory)

        def accept() -> None:
            with contextlib.suppress(LinkClosed):
                if serve is None:
                    server.run()
                while True:
                    link = listener.accept(DEADLINE_S)
                    if link is not None:
                        self._stack.callback(link.abort)
                        self._stack.callback(_started(serve, link).join, DEADLINE_S)

        thread = threading.Thread(target=accept)
        thread.start()
        self._stack.callback(thread.join, DEADLINE_S)
        self._stack.callback(listener.close)

    def runner(
        self, transport: Transport = "auto", timeout_s: float = DEADLINE_S, out_dtype: OutDtype = "float32"
    ) -> StepRunner:
        """A debtor that asks them."""
        links = PeerLinks(identity("debtor"), self._memory.slot_bytes, timeout_s, transport, out_dtype=out_dtype)
        self.counters = links.counters
        links.update(tuple(self.members))
        self._stack.callback(links.update, (), tuple(member.instance_id for member in self.members))
        return StepRunner(self.engine.model, self.engine.pool, links, None, "ship")

    def close(self) -> None:
        self._stack.close()


def _started(serve: Callable[[TensorLink], None] | None, link: TensorLink) -> threading.Thread:
    assert serve is not None

    def run() -> None:
        with contextlib.suppress(DistKVError, threading.BrokenBarrierError):
            serve(link)

    thread = threading.Thread(target=run)
    thread.start()
    return thread
