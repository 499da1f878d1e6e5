"""The worker's mailboxes: made for links to creditors on this host, mapped for debtors that have made theirs."""

from __future__ import annotations

import threading
import time
from typing import ClassVar

import structlog
import torch

from distkv.actors.worker.links.link_watch import LinkWatch
from distkv.engine.attention.mailbox.posting import Posting, mailbox_bytes
from distkv.engine.attention.mailbox.serving import PostedServing
from distkv.engine.attention.serving import AttendServer
from distkv.engine.device.device import Device
from distkv.engine.model.config import ModelConfig
from distkv.wire.links import TensorLink, ask_to_attach
from distkv.wire.links.memory.mailbox_memory import make_mailbox, map_mailbox
from distkv.wire.links.memory.pool_memory import PoolUnmappable
from distkv.wire.links.transports.offer import TransportUnusable, offered
from distkv.wire.messages.common import DataEndpoint, Value
from distkv.wire.messages.data import Hello

ANSWER_S = 1.0
FRAMES_S = 60.0
"""For which a creditor is asked by frames after a device waited for it in vain: whatever is wrong between two devices,
requests go on."""


class MailboxOffer(Value, frozen=True):
    """Metadata of "mailbox": this worker maps mailboxes of debtors on its host. unit: of its device."""

    unit: str = ""


class Mailboxes:
    """A Registration that carries no reads: debtors attach to it by the place of their mailbox, and hear nothing if it
    was mapped, or why not. Used by any threads; closed when no link lives any more."""

    name: ClassVar[str] = "mailbox"

    def __init__(self, server: AttendServer, config: ModelConfig, dtype: torch.dtype, device: Device) -> None:
        """server: of the pool that debtors ask. dtype: of queries."""
        self._server, self._config, self._dtype, self._device = server, config, dtype, device
        self.offer = MailboxOffer(unit=device.unit)
        self._lock = threading.Lock()
        self._frames_until_s: dict[str, float] = {}
        self._serving: dict[TensorLink, PostedServing] = {}
        self._watch = LinkWatch()
        self._log = structlog.get_logger()

    def make(self, link: TensorLink, endpoint: DataEndpoint) -> Posting | None:
        """A mailbox that the creditor at the other end of a fresh link has mapped; None where there can be none. Raises
        LinkError, MalformedMessage: the link is dead then."""
        stream = link.stream
        offer = offered(endpoint, self.name, MailboxOffer)
        if stream is None or not link.within_host or offer is None:
            return None
        if offer.unit and offer.unit == self.offer.unit:
            # Who waits on the device would keep the one who is waited for from its turn.
            self._log.info("a mailbox is not used", peer=link.peer, why="both compute on one device, in turns")
            return None
        config, dtype = self._config, self._dtype
        dims = config.num_heads, config.head_dim, dtype
        if self._has_failed(link.peer):
            self._log.info("a mailbox is not used", peer=link.peer, why="one failed lately")
            return None
        try:
            memory = make_mailbox(*mailbox_bytes(*dims))
        except OSError as error:
            self._log.warning("there is no memory for a mailbox", peer=link.peer, why=str(error))
            return None
        try:
            shared = self._device.share(memory.view)
            if shared is None:
                self._log.info("a mailbox is not used", peer=link.peer, why="the device cannot reach its memory")
                return None
            why = bytes(ask_to_attach(link, self.name, memory.place(), ANSWER_S)).decode(errors="replace")
        finally:
            memory.forget()
        if why:
            self._log.info("a mailbox is not used", peer=link.peer, why=why)
            return None
        self._log.info("a mailbox is used", peer=link.peer)
        with self._device.shared_stream():
            posting = Posting(memory, shared, self._device, config.num_layers, *dims, lambda: self._failed(link.peer))
            self._device.synchronize()
        self._watch.on_end(stream, memory.halt)
        return posting

    def of(self, link: TensorLink) -> PostedServing | None:
        """What serves the plans that a debtor posts; None if it has no mailbox on this link."""
        with self._lock:
            return self._serving.get(link)

    def _failed(self, peer: str) -> None:
        """The next links to this creditor do without."""
        now_s = time.monotonic()
        with self._lock:
            self._frames_until_s = {name: until for name, until in self._frames_until_s.items() if until > now_s}
            self._frames_until_s[peer] = now_s + FRAMES_S

    def _has_failed(self, peer: str) -> bool:
        with self._lock:
            return self._frames_until_s.get(peer, 0.0) > time.monotonic()

    def connect(self, endpoint: DataEndpoint, hello: Hello, timeout_s: float) -> TensorLink:
        """See Registration."""
        raise TransportUnusable("a mailbox carries queries, and reads nothing")

    def attach(self, link: TensorLink, body: memoryview) -> bytes:
        """See Registration."""
        stream = link.stream
        if stream is None or not link.within_host:
            return b"this is another host"
        try:
            memory = map_mailbox(body)
        except PoolUnmappable as error:
            return error.why.encode()
        shared = self._device.share(memory.view)
        if shared is None:
            return b"the device cannot reach it"
        if not self._server.keep_stream():
            return b"there is no stream left on which nobody else would wait for its queries"
        serving = PostedServing(self._server, memory, shared, self._watch.later)
        self._watch.on_end(stream, memory.halt)
        with self._lock:
            self._serving[link] = serving
        return b""

    def detach(self, link: TensorLink) -> None:
        """See Registration."""
        with self._lock:
            self._serving.pop(link, None)

    def close(self) -> None:
        """See Registration."""
        self._watch.close()
