"""The parts of one rManager's decisions, each of which owns one thing; made in the order in which they need each
other."""

from __future__ import annotations

from random import Random
from typing import Protocol

from distkv.control.loan.creditor.creditor import Creditor
from distkv.control.loan.creditor.reclaimer import Reclaimer
from distkv.control.loan.debtor.debts import DebtBook
from distkv.control.loan.debtor.homecoming import Homecoming
from distkv.control.loan.debtor.moves import Mover
from distkv.control.loan.debtor.recall import Recaller
from distkv.control.plan.planned_moves import PlannedMoves
from distkv.control.plan.redispatcher import Redispatcher
from distkv.control.plan.swaps import Swapper
from distkv.control.request.answer.output import MakeDecoder
from distkv.control.request.lifecycle import RequestLifecycle
from distkv.control.rmanager.clients import ClientBook
from distkv.control.rmanager.drain import Drain
from distkv.control.rmanager.peers.losses import Losses
from distkv.control.rmanager.peers.peers import PeerBook
from distkv.control.rmanager.quiet import Quiet
from distkv.control.rmanager.reports.explaining import Explainer
from distkv.control.rmanager.reports.heartbeats import Heartbeats
from distkv.control.rmanager.state import RManagerState
from distkv.control.schedule.admission.admission import Admission
from distkv.control.schedule.admission.demand import Demand
from distkv.control.schedule.holdings import Holdings
from distkv.control.schedule.making_room import MakingRoom
from distkv.control.serving.guard import ServingGuard


class Timed(Protocol):
    """A part with timers."""

    def next_deadline(self) -> float:
        """When it needs a `Tick`, on the clock of `now`; infinity if never."""
        ...


class Parts:
    """Of one rManager: `RManager` and its `Inboxes` call them by name."""

    def __init__(self, state: RManagerState, make_decoder: MakeDecoder, entropy: Random) -> None:
        self.debts = DebtBook(state)
        self.mover = Mover(state, self.debts)
        self.recaller = Recaller(state, self.debts)
        self.swapper = Swapper(state, self.debts, self.recaller)
        self.homecoming = Homecoming(state, self.debts, self.recaller)
        self.holdings = Holdings(state, self.debts, entropy)
        self.making_room = MakingRoom(state, self.holdings, entropy)
        self.planned = PlannedMoves(state, self.debts, self.holdings, self.recaller, lambda: self.heartbeats.newest_seq)
        self.demand = Demand(state, self.holdings)
        self.admission = Admission(state, self.debts, self.holdings, self.demand, self.making_room)
        self.reclaimer = Reclaimer(state, self.admission.lacking)
        self.serving = ServingGuard(state, self.reclaimer)
        self.creditor = Creditor(state, self.reclaimer)
        self.losses = Losses(state, self.debts)
        self.requests = RequestLifecycle(state, self.debts, make_decoder, entropy, self.losses.in_step)
        self.redispatcher = Redispatcher(state, self.requests)
        self.peers = PeerBook(state, lambda instance_id: bool(self.debts.at(instance_id)))
        self.heartbeats = Heartbeats(state)
        self.clients = ClientBook()
        self.explainer = Explainer(state, self.demand)
        self.drain = Drain(state, self.requests, self.creditor, self.debts, self.holdings)
        idle = self.recaller, self.swapper, self.reclaimer, self.homecoming, self.admission
        self.quiet = Quiet(state, self.heartbeats, self.requests.observe, idle)
        self._timed: tuple[Timed, ...] = (
            self.peers,
            state.paths,
            state.borrower,
            self.creditor,
            self.reclaimer,
            self.serving,
            self.debts,
            self.admission,
            self.making_room,
            self.requests,
            self.clients,
            self.mover,
            self.heartbeats,
            self.homecoming,
            self.drain,
            self.swapper,
        )

    def next_deadline(self) -> float:
        """When the first of them needs a `Tick`."""
        return min(part.next_deadline() for part in self._timed)

    def validate(self) -> None:
        """Every invariant of each of them; what they share is in `RManagerState.validate`."""
        self.heartbeats.validate()
        self.peers.validate()
        self.debts.validate()
        self.mover.validate()
        self.reclaimer.validate()
        self.swapper.validate()

    def slots_given_up(self) -> list[int]:
        """Slots that belong to no request any more, and to the pool not yet."""
        return self.debts.closing_slots() + self.recaller.slots() + self.swapper.slots()
