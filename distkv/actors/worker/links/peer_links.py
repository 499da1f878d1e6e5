"""The worker's links to its peers: two per creditor and microbatch for steps, to ask and to read blocks, and one per
source for transfers."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from weakref import WeakKeyDictionary

import structlog

from distkv.actors.worker.links.creditor_links import CreditorLinks, Report
from distkv.actors.worker.links.mailboxes import Mailboxes
from distkv.engine.attention.answer_times import AnswerTimes
from distkv.engine.attention.creditor_link import CreditorLink
from distkv.engine.attention.fetch.costs import Costs, Model
from distkv.engine.attention.fetch.link import FetchLink
from distkv.engine.attention.mailbox.posting import Posting
from distkv.errors import HandshakeRefused, LinkClosed, LinkError, WireError
from distkv.wire.links import LinkIdentity, Registrations, TensorLink, Transport, connect, hello_to
from distkv.wire.messages.common import Member
from distkv.wire.messages.counters import Counters
from distkv.wire.messages.data import OutDtype

CONNECT_TIMEOUT_S = 1.0


@dataclass(frozen=True, slots=True)
class Measured:
    """Of one creditor. answers, slots: how long it takes to answer queries, and to say where spans lie."""

    answers: AnswerTimes
    slots: AnswerTimes
    costs: Costs


class PeerLinks:
    """Opens links by the newest member list. `creditor` and `fetch_link` are for the step thread; `source`
    for the one thread that pulls from that peer; `prepare` for any.

    slot_bytes: of one rBlock here; a peer that says another number is not linked to. counters: query_bytes of plans,
    queries and partials that passed.
    """

    def __init__(
        self,
        identity: LinkIdentity,
        slot_bytes: int,
        attend_timeout_s: float,
        transport: Transport,
        cost_model: Callable[[TensorLink], Model] | None = None,
        registered: Registrations | None = None,
        out_dtype: OutDtype = "float32",
        mailboxes: Mailboxes | None = None,
    ) -> None:
        """registered: the own pool, known to transports that need it. cost_model(link): what attention over keys
        behind a link takes by a profile; None without one. out_dtype: in which partials come from other hosts; within
        one it costs as much to round them as it saves. mailboxes: by which the device asks creditors on this host."""
        self.counters = Counters()
        self._identity = identity
        self._slot_bytes = slot_bytes
        self._transport: Transport = transport
        self._registered = registered or {}
        self._out_dtype: OutDtype = out_dtype
        self._lock = threading.Lock()
        self._members: dict[str, Member] = {}
        self._attend_timeout_s, self._cost_model = attend_timeout_s, cost_model
        self._measured: dict[str, Measured] = {}
        self._mailboxes = mailboxes
        self._postings: WeakKeyDictionary[TensorLink, Posting] = WeakKeyDictionary()
        self._creditors = CreditorLinks(self._open_with_mailbox, self._asking)
        self._fetches = CreditorLinks(self._open, self._reading)
        self._sources: dict[str, tuple[int, TensorLink]] = {}
        self._log = structlog.get_logger()

    def update(self, members: tuple[Member, ...], gone: tuple[str, ...] = ()) -> None:
        """These are new or changed, those are gone; links to incarnations that are none any more end, also in the
        middle of a wait. Costs what changed and the links there are, however long the list is."""
        with self._lock:
            self._members.update({member.instance_id: member for member in members})
            for instance_id in gone:
                self._members.pop(instance_id, None)
            ended = [name for name, (incarnation, _) in self._sources.items() if not self._is_listed(name, incarnation)]
            links = [self._sources.pop(instance_id)[1] for instance_id in ended]
            for name in [name for name in self._measured if name not in self._members]:
                del self._measured[name]
        self._creditors.keep_only(self._members)
        self._fetches.keep_only(self._members)
        for link in links:
            link.abort()

    def creditor(self, instance_id: str, microbatch: int = 0) -> CreditorLink:
        """A usable link for micro-attention, one for each microbatch. Never connects. Raises LinkClosed."""
        return self._creditors.get(self._member(instance_id), microbatch)

    def fetch_link(self, instance_id: str, microbatch: int = 0) -> FetchLink | None:
        """A usable link to read a creditor's blocks by, one for each microbatch; None while there is none."""
        try:
            return self._fetches.find(self._member(instance_id), microbatch)
        except LinkClosed:
            return None

    def prepare(self, instance_id: str, incarnation: int, report: Report) -> None:
        """Have a link for micro-attention to one incarnation of a peer before a step needs it. `report` is called when
        there is one, or with why none can be had, from whatever thread."""
        try:
            member = self._member_in(instance_id, incarnation)
        except LinkClosed as error:
            report(error.why)
        else:
            self._creditors.prepare(member, report)

    def source(self, instance_id: str, incarnation: int) -> TensorLink:
        """A link to read the pool of one incarnation of a peer. Raises LinkError."""
        if (open_link := self.open_source(instance_id, incarnation)) is not None:
            return open_link
        member = self._member_in(instance_id, incarnation)
        if (known := self._sources.get(instance_id)) is not None:
            self.drop_source(instance_id, known[1])
        link = self._open(member)
        with self._lock:
            is_listed = self._is_listed(instance_id, incarnation)
            if is_listed:
                self._sources[instance_id] = (incarnation, link)
        if not is_listed:  # `update` came meanwhile, and will not end this one
            link.abort()
            raise LinkClosed(instance_id, "it has a new incarnation")
        return link

    def open_source(self, instance_id: str, incarnation: int) -> TensorLink | None:
        """That link if there is one already: whoever is gone has none."""
        known = self._sources.get(instance_id)
        return known[1] if known is not None and known[0] == incarnation else None

    def drop_source(self, instance_id: str, link: TensorLink) -> None:
        """This link failed: open a new one next time, unless there is one already."""
        with self._lock:
            known = self._sources.get(instance_id)
            if known is not None and known[1] is link:
                del self._sources[instance_id]
        link.abort()

    def _asking(self, link: TensorLink, instance_id: str, on_silent: Callable[[], None]) -> CreditorLink:
        measured = self._measured_of(instance_id, link)
        out_dtype: OutDtype = "float32" if link.within_host else self._out_dtype
        with self._lock:
            posting = self._postings.pop(link, None)
        return CreditorLink(
            link, instance_id, measured.answers, self.counters, on_silent, measured.costs, out_dtype, posting
        )

    def _reading(self, link: TensorLink, instance_id: str, on_silent: Callable[[], None]) -> FetchLink:
        measured = self._measured_of(instance_id, link)
        return FetchLink(link, instance_id, measured.slots, measured.costs, on_silent)

    def _measured_of(self, instance_id: str, link: TensorLink) -> Measured:
        """What links to a creditor have taught; kept while it is a member, and used by the step thread."""
        with self._lock:
            known = self._measured.get(instance_id)
            if known is None:
                model = None if self._cost_model is None else self._cost_model(link)
                timeout_s = self._attend_timeout_s
                known = Measured(AnswerTimes(timeout_s), AnswerTimes(timeout_s), Costs(model))
                self._measured[instance_id] = known
            return known

    def _is_listed(self, instance_id: str, incarnation: int) -> bool:
        """With the lock held."""
        member = self._members.get(instance_id)
        return member is not None and member.incarnation == incarnation

    def _member(self, instance_id: str) -> Member:
        with self._lock:
            member = self._members.get(instance_id)
        if member is None or member.data is None:
            raise LinkClosed(instance_id, "it is no live member of the cluster")
        return member

    def _member_in(self, instance_id: str, incarnation: int) -> Member:
        member = self._member(instance_id)
        if member.incarnation != incarnation:
            raise LinkClosed(instance_id, "it has a new incarnation")
        return member

    def _open_with_mailbox(self, member: Member) -> TensorLink:
        """For queries; on this host the devices of both ends may do without the link's frames."""
        link = self._open(member)
        if self._mailboxes is None:
            return link
        assert member.data is not None
        try:
            posting = self._mailboxes.make(link, member.data)
        except (LinkError, WireError) as error:
            link.abort()
            raise LinkClosed(member.instance_id, f"its mailbox: {error}") from error
        if posting is not None:
            with self._lock:
                self._postings[link] = posting
        return link

    def _open(self, member: Member) -> TensorLink:
        assert member.data is not None
        hello = hello_to(self._identity, member.instance_id, member.incarnation)
        try:
            # Peers whose compat is equal have equal rBlocks; the handshake sees to it that Welcome says the same.
            if member.data.slot_bytes != self._slot_bytes:
                raise HandshakeRefused("slot_bytes", self._slot_bytes, member.data.slot_bytes)
            link = connect(member.data, hello, CONNECT_TIMEOUT_S, self._transport, self._registered)
        except WireError as error:
            raise LinkClosed(member.instance_id, str(error)) from error
        except LinkError as error:
            self._log.warning("a peer cannot be reached", peer=member.instance_id, why=str(error))
            raise
        self._log.info("linked", peer=member.instance_id, transport=link.transport)
        return link
