"""The worker's serving side: peers' micro-attention and block reads, each link in a thread of its own.

It reads only local full rBlocks and waits for nothing remote, so waits never form a cycle, whatever the lending
graph looks like.
"""

from __future__ import annotations

import threading
import time

import structlog

from distkv.actors.worker.links.mailboxes import Mailboxes
from distkv.engine.attention.direct_serving import DirectServing
from distkv.engine.attention.serving import AttendServer, ServedPlan
from distkv.errors import LinkClosed, LinkError, LinkTimeout, MalformedMessage, WireError
from distkv.kernels.mailbox import MailStatus
from distkv.log.line_limit import LineLimit
from distkv.wire.links import LinkListener, Pool, Registration, Registrations, TensorLink, attach, deny, serve_read
from distkv.wire.messages.counters import Counters, total
from distkv.wire.messages.data import Attach, Attend, AttendPlan, ReadBlocks, SlotsQuery

ACCEPT_S = 1.0
IDLE_S = 60.0
MAX_LINKS = 32
"""Of one peer: several times what its worker opens for its micro-batches, its fetches and its pulls. Each takes a
thread and some descriptors."""


class LinkServer:
    """`run` is the listener's thread; it starts one more per link. A peer that has MAX_LINKS loses the oldest for the
    next one: of a worker whose links were cut off without a word it is one of those."""

    def __init__(
        self,
        listener: LinkListener,
        server: AttendServer,
        memory: Pool,
        registered: Registrations | None = None,
        mailboxes: Mailboxes | None = None,
    ) -> None:
        """registered: what peers may attach to. mailboxes: one of these, where debtors may post their queries."""
        self._listener = listener
        self._registered = registered or {}
        self._server, self._mailboxes = server, mailboxes
        self._memory = memory
        self._counters = Counters()
        self._lock = threading.Lock()
        self._too_many, self._no_threads = LineLimit(), LineLimit()
        self._links: dict[str, dict[TensorLink, None]] = {}
        self._log = structlog.get_logger()

    @property
    def counters(self) -> Counters:
        """malformed_messages: links dropped for what they sent, before or after the handshake."""
        return total(self._counters, Counters(malformed_messages=self._listener.malformed))

    def run(self) -> None:
        """Accept links for ever."""
        while True:
            link = self._listener.accept(ACCEPT_S)
            if link is None:
                continue
            self._add(link)
            try:
                threading.Thread(target=self._serve, args=(link,), name=f"serve {link.peer}", daemon=True).start()
            except RuntimeError as error:  # the system gives no more of them
                if (left_out := self._no_threads.admit(time.monotonic())) is not None:
                    self._log.warning(
                        "a tensor link could not be accepted", peer=link.peer, problem=str(error), left_out=left_out
                    )
                self._remove(link)
                link.abort()

    def _add(self, link: TensorLink) -> None:
        with self._lock:
            links = self._links.setdefault(link.peer, {})
            oldest = next(iter(links)) if len(links) >= MAX_LINKS else None
            if oldest is not None:
                del links[oldest]
            links[link] = None
        if oldest is not None:
            oldest.abort()
            if (left_out := self._too_many.admit(time.monotonic())) is not None:
                self._log.warning(
                    "a peer opened too many tensor links", peer=link.peer, limit=MAX_LINKS, left_out=left_out
                )

    def _remove(self, link: TensorLink) -> None:
        with self._lock:
            links = self._links.get(link.peer, {})
            links.pop(link, None)
            if not links:
                self._links.pop(link.peer, None)

    def _serve(self, link: TensorLink) -> None:
        plan: ServedPlan | None = None
        attached: dict[str, Registration] = {}
        direct = None if link.stream is None else DirectServing(self._server, link.stream, link.peer)
        try:
            while True:
                plan = self._answer(link, plan, attached, direct)
        except LinkClosed:
            pass
        except LinkError as error:
            self._log.warning("a peer stopped reading", peer=link.peer, why=str(error))
        except WireError as error:
            with self._lock:
                self._counters.malformed_messages += 1
            self._log.warning("a peer sent nonsense", peer=link.peer, why=str(error))
        except Exception as error:
            self._log.error("serving failed", peer=link.peer, why=f"{type(error).__name__}: {error}", exc_info=True)
        finally:
            if direct is not None:
                direct.end()
            self._remove(link)
            link.abort()
            for registration in attached.values():
                registration.detach(link)

    def _answer(
        self,
        link: TensorLink,
        plan: ServedPlan | None,
        attached: dict[str, Registration],
        direct: DirectServing | None,
    ) -> ServedPlan | None:
        """Serve one frame, or all layers of a plan; returns the plan that holds from now on."""
        if direct is not None and direct.is_ready and not direct.run(IDLE_S):
            return plan
        try:
            header, body = link.recv(IDLE_S)
        except LinkTimeout:
            return plan
        match header:
            case AttendPlan():
                try:
                    plan = self._server.accept(header, body)
                    if header.first_post:
                        self._serve_posted(link, plan)
                    elif direct is not None:
                        direct.begin(plan)
                    return plan
                except MalformedMessage as error:
                    raise deny(link, "plan", "one that fits its spans", error.problem) from None
            case Attend() if plan is not None:
                try:
                    partials, out, lse = self._server.serve(plan, header, body)
                except MalformedMessage as error:
                    raise deny(link, "queries", "those of the plan", error.problem) from None
                link.send(partials, out, lse)
                return plan
            case ReadBlocks():
                serve_read(link, header, self._memory)
                return plan
            case Attach():
                if header.transport in attached:
                    raise deny(link, "frame", "one Attach for a transport at most", "another")
                attached[header.transport] = attach(link, header, body, self._registered)
                return plan
            case SlotsQuery():
                try:
                    found, slots = self._server.slots(header)
                except MalformedMessage as error:
                    raise deny(link, "parts", "those of its spans", error.problem) from None
                link.send(found, slots)
                return plan
            case _:
                raise deny(link, "frame", "a plan, queries after a plan, or a read", type(header).__name__)

    def _serve_posted(self, link: TensorLink, plan: ServedPlan) -> None:
        """Raises MalformedMessage, LinkError."""
        serving = None if self._mailboxes is None else self._mailboxes.of(link)
        if serving is None:
            raise MalformedMessage("a plan for a mailbox, and there is none")
        outcome = serving.serve(plan)
        if isinstance(outcome, MailStatus):
            raise LinkClosed(link.peer, f"its mailbox is {outcome.name.lower()}")
        link.send(outcome)
