"""A creditor's side: all layers of a plan are given to its device at once, each waiting for its queries."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from distkv.engine.attention.mailbox.ends import MailboxEnd, SharedMemory
from distkv.engine.attention.serving import AttendServer, ServedPlan
from distkv.engine.attention.spans import Standing
from distkv.errors import MalformedMessage
from distkv.kernels.mailbox import SPOILT, MailStatus
from distkv.wire.messages.data import PlanServed

QUERIES_S = 30.0
"""As long queries of the next layer may take. A debtor that is gone is noticed by its connection, long before."""
REVOKED_S = 0.5
"""As long a plan may go on over a span that was revoked under it; then its layers end unserved."""

Later = Callable[[float, Callable[[], None]], None]
"""Calls something in so many seconds, from another thread."""


class PostedServing:
    """Of one link, by the thread that serves it.

    What a plan reads is pinned until its last layer is done: a revocation waits for that, REVOKED_S at most.
    """

    def __init__(self, server: AttendServer, memory: SharedMemory, shared: Tensor, later: Later) -> None:
        """shared: see MailboxEnd."""
        self._server, self._memory, self._later = server, memory, later
        with server.stream():
            self._end = MailboxEnd(memory, shared, server.device)
        self._computed_s = 0.0

    @torch.inference_mode()
    def serve(self, served: ServedPlan) -> PlanServed | MailStatus:
        """All layers of a plan that was accepted; what the debtor is told when all are done, or why they are not: then
        the mailbox is dead. Raises MalformedMessage for a plan that has no room in it."""
        self._check(served)
        server, plan = self._server, served.plan
        with server.stream(), self._standing(served) as spans:
            self._launch(served, spans)
            # From here on nothing that was launched reads a pool any more.
            outcome = self._end.outcome()
        if outcome.status is not MailStatus.OK:
            self._end.halt()
            return outcome.status
        server.count_posted(plan.num_rows * server.num_layers, outcome.computed_s - self._computed_s)
        self._computed_s = outcome.computed_s
        return PlanServed(
            step_id=plan.step_id, stale=tuple(index for index, slots in enumerate(spans) if slots is None)
        )

    def _launch(self, served: ServedPlan, spans: list[tuple[int, ...] | None]) -> None:
        server, end, first = self._server, self._end, served.plan.first_post
        device, config = server.device, server.config
        backend = device.backend
        try:
            metadata = server.metadata(served, spans)
            shape = served.plan.num_rows, config.num_heads, config.head_dim
            queries = torch.zeros(shape, dtype=server.dtype, device=device.place)
            for layer in range(config.num_layers):
                backend.take(end.queries, first + layer, queries, limit_s=QUERIES_S)
                window = config.windows[layer]
                partial = backend.attend(
                    queries, server.pool.layer(layer), metadata, config.scale, window, serving=True
                )
                backend.post(end.partials, first + layer, *partial)
        except BaseException:
            end.halt()
            device.synchronize()
            raise

    @contextmanager
    def _standing(self, served: ServedPlan) -> Iterator[list[tuple[int, ...] | None]]:
        """The slots of each entry's span, None where it is gone; those that are there keep their content meanwhile."""
        registry, gate = self._server.registry, _PlanGate(self._end.halt, self._later)
        standings: list[Standing] = []
        spans: list[tuple[int, ...] | None] = []
        try:
            for entry in served.plan.entries:
                found = registry.stand([(entry.span, entry.index, entry.num_blocks)], gate)
                spans.append(None if found is None else found[1][0])
                if found is not None:
                    standings.append(found[0])
            yield spans
        finally:
            gate.end()
            for standing in standings:
                registry.leave(standing)

    def _check(self, served: ServedPlan) -> None:
        plan, config, memory = served.plan, self._server.config, self._memory
        row = config.num_heads * config.head_dim
        query_bytes = plan.num_rows * row * self._server.dtype.itemsize
        partial_bytes = sum(entry.num_rows for entry in plan.entries) * (row + config.num_heads) * 4
        if query_bytes > memory.query_bytes or partial_bytes > memory.partial_bytes:
            raise MalformedMessage(
                f"{query_bytes} bytes of queries and {partial_bytes} of partials for a mailbox with room for "
                f"{memory.query_bytes} and {memory.partial_bytes}"
            )
        if not 0 < plan.first_post < SPOILT - config.num_layers:
            raise MalformedMessage(f"layers are numbered from {plan.first_post}")


class _PlanGate:
    """See Gate. What is read by it is read until `end`, also after it was shut; not for long after."""

    def __init__(self, halt: Callable[[], None], later: Later) -> None:
        self._halt, self._later = halt, later
        self._lock = threading.Lock()
        self._is_over = self._is_shut = False

    def shut(self) -> bool:
        """See Gate."""
        if not self._is_shut:
            self._is_shut = True
            self._later(REVOKED_S, self._give_up)
        return True

    def end(self) -> None:
        """Nothing is read by it any more."""
        with self._lock:
            self._is_over = True

    def _give_up(self) -> None:
        with self._lock:
            if not self._is_over:
                self._halt()
