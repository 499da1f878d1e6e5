"""Creditors on real links that map mailboxes, and a debtor that asks them."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from typing import Any

import pytest
from torch import Tensor

from distkv.actors.worker.links import creditor_links
from distkv.actors.worker.links.link_server import LinkServer
from distkv.actors.worker.links.mailboxes import Mailboxes
from distkv.actors.worker.links.peer_links import PeerLinks
from distkv.engine.step.runner import StepRunner
from distkv.errors import LinkClosed
from distkv.kernels import Partial
from distkv.types import Transport
from distkv.wire.links import PoolMemory, TensorLink, connect, hello_to, listen
from distkv.wire.messages.common import Member
from distkv.wire.messages.from_worker import SeqResult
from distkv.wire.messages.to_worker import SeqStep, Step
from tests.actors.links import DEADLINE_S, identity
from tests.engine.harness import Engine
from tests.engine.lent import Lent


class Creditors:
    """Creditors x and y of an engine, which map mailboxes. before_layer: called by each of them before it attends, with
    its name and the layer."""

    def __init__(self, engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
        self.engine = engine
        self._memory = PoolMemory(engine.pool.slot_bytes, 1)
        self._stack = contextlib.ExitStack()
        self._stack.callback(self._memory.close)
        self.members: dict[str, Member] = {}
        self.servers: dict[str, LinkServer] = {}
        self.before_layer: Callable[[str, int], None] = lambda _name, _layer: None
        self.posted: list[int] = []
        self._patch(monkeypatch)

    def _patch(self, monkeypatch: pytest.MonkeyPatch) -> None:
        # However busy the machine is, a first step finds its links.
        monkeypatch.setattr(creditor_links, "LINK_WAIT_S", DEADLINE_S)
        backend = self.engine.model.device.backend
        attend, post = backend.attend, backend.post

        def attends(q: Tensor, kv: Any, *args: Any, serving: bool = False, **named: Any) -> Partial:
            if serving:
                for name, creditor in self.engine.peers.creditors.items():
                    for layer in range(self.engine.model.config.num_layers):
                        if creditor.engine.pool.layer(layer) is kv:
                            self.before_layer(name, layer)
            return attend(q, kv, *args, serving=serving, **named)

        def posts(lane: Any, number: int, *tensors: Tensor) -> None:
            self.posted.append(number)
            post(lane, number, *tensors)

        monkeypatch.setattr(backend, "attend", attends)
        monkeypatch.setattr(backend, "post", posts)

    def add(self, name: str, incarnation: int = 1) -> None:
        model, server = self.engine.model, self.engine.peers.creditors[name].server
        mailboxes = Mailboxes(server, model.config, model.dtype, model.device)
        self._stack.callback(mailboxes.close)
        registered = {Mailboxes.name: mailboxes}
        listener = listen("127.0.0.1:0", identity(name, incarnation), self._memory, registered=registered)
        self.members[name] = Member(
            instance_id=name, incarnation=incarnation, address="", state="ready", data=listener.endpoint
        )
        self.servers[name] = LinkServer(listener, server, self._memory, registered, mailboxes)

        def accept() -> None:
            with contextlib.suppress(LinkClosed):
                self.servers[name].run()

        thread = threading.Thread(target=accept)
        thread.start()
        self._stack.callback(thread.join, DEADLINE_S)
        self._stack.callback(listener.close)

    def runner(
        self, transport: Transport = "auto", timeout_s: float = DEADLINE_S, microbatches: int | None = None
    ) -> StepRunner:
        """A debtor that asks them."""
        model, creditor = self.engine.model, next(iter(self.engine.peers.creditors.values()))
        mailboxes = Mailboxes(creditor.server, model.config, model.dtype, model.device)
        self.links = PeerLinks(identity("debtor"), self._memory.slot_bytes, timeout_s, transport, mailboxes=mailboxes)
        self.links.update(tuple(self.members.values()))
        self._stack.callback(mailboxes.close)
        self._stack.callback(self.links.update, (), tuple(self.members))
        return StepRunner(model, self.engine.pool, self.links, microbatches, "ship")

    def counted(self, name: str) -> int:
        """Query rows that it attended with."""
        return self.engine.peers.creditors[name].server.counters.attend_queries

    def pins(self, lent: Lent) -> int:
        return sum(self.engine.peers.creditors[one.instance_id].registry.pins(one.span) for one in lent.remote)

    def join(self, name: str) -> TensorLink:
        """A link of whoever."""
        endpoint = self.members[name].data
        assert endpoint is not None
        link = connect(endpoint, hello_to(identity("asker"), name, 1), DEADLINE_S, "unix")
        self._stack.callback(link.close)
        return link

    def close(self) -> None:
        self._stack.close()


def run(runner: StepRunner, *seqs: SeqStep, step_id: int = 1) -> tuple[SeqResult, ...]:
    return runner.run(Step(step_id=step_id, seqs=seqs))


def decode(lent: Lent, **fields: Any) -> SeqStep:
    return lent.step(49, 50, **fields)
