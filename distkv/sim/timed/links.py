"""What lies between instances: who is on one host, and links whose bandwidth is shared by all who use them."""

from __future__ import annotations

from collections import defaultdict

import msgspec

from distkv.control.performance.model import PerformanceModel
from distkv.sim.timed.agenda import Action, Agenda
from distkv.sim.timed.sharing import Resource, Sharing
from distkv.wire.messages.profile import LinkKind, LinkProfile, Profile


def with_links(profile: Profile, host: LinkProfile | None, network: LinkProfile | None) -> Profile:
    """The same hardware with other links between instances of one host, and between hosts; None leaves it as it is."""
    wanted: dict[LinkKind, LinkProfile | None] = {"host": host, "network": network}
    chosen = {kind: link for kind, link in wanted.items() if link is not None}
    return msgspec.structs.replace(profile, links={**profile.links, **chosen}) if chosen else profile


class Links:
    """Between instances by name. profile: says how fast they are. network_shared: instances of a host share its link
    to other hosts; otherwise each has its own."""

    def __init__(self, profile: Profile, agenda: Agenda, *, network_shared: bool = False) -> None:
        self._model = PerformanceModel(profile)
        self._agenda = agenda
        self._network_shared = network_shared
        self._sharing = Sharing(agenda)
        self._host_of: dict[str, str] = {}
        self._out: defaultdict[tuple[str, LinkKind], Resource] = defaultdict(Resource)
        self._in: defaultdict[tuple[str, LinkKind], Resource] = defaultdict(Resource)

    def place(self, name: str, host: str) -> None:
        """An instance is on a host."""
        self._host_of[name] = host

    def kind(self, one: str, other: str) -> LinkKind:
        """What lies between two of them."""
        return "host" if self._host_of[one] == self._host_of[other] else "network"

    def read(self, reader: str, source: str, num_bytes: int, done: Action) -> None:
        """Have so many bytes of keys and values read; `done` comes when all have arrived."""
        known = self._model.link(self.kind(reader, source))
        work_s = num_bytes / known.read_bytes_per_s

        def arrived() -> None:
            self._agenda.after(known.round_trip_s, done)

        self._sharing.begin(work_s, self._ports(source, reader), arrived)

    def exchange_s(self, debtor: str, creditor: str, rows: int, *, busy: bool) -> float:
        """Seconds for queries of so many rows there and partials back, in all layers, without any attention. What is
        being read over the same link takes its share. busy: whether the creditor computes steps of its own."""
        users = 1 + max(len(port.jobs) for port in self._ports(debtor, creditor) + self._ports(creditor, debtor))
        return self._model.exchange_s(rows, link=self.kind(debtor, creditor), busy=busy, users=users)

    def round_trip_s(self, one: str, other: str) -> float:
        """Of a short message between two of them, and its answer."""
        return self._model.link(self.kind(one, other)).round_trip_s

    def _ports(self, source: str, target: str) -> tuple[Resource, Resource]:
        kind = self.kind(source, target)
        if kind == "network" and self._network_shared:
            source, target = self._host_of[source], self._host_of[target]
        return self._out[source, kind], self._in[target, kind]
