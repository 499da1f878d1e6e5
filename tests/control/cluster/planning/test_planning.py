"""A gManager that plans, whatever heartbeats say, get lost, come twice or late: what it sends keeps its promises."""

from __future__ import annotations

from typing import Any, ClassVar

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from distkv import events
from distkv.config import AdviceSettings, MembershipSettings
from distkv.control.cluster.gmanager import GManager
from distkv.control.cluster.ledger import Entry
from distkv.control.cluster.planning.fullness import PARTS
from distkv.control.cluster.planning.plans import COOL_S
from distkv.control.cluster.policy.even import BELOW
from distkv.control.commands import Answer, GManagerCommand, GManagerRequested, Publish, Tick
from distkv.types import PolicyName
from distkv.wire.messages import to_gmanager as tg
from distkv.wire.messages.common import DataEndpoint, PlanEpoch
from distkv.wire.messages.to_gmanager import Debtor, LongRequest
from distkv.wire.messages.to_rmanager import MoveKvcache
from tests.control.parts import make_member
from tests.control.performance.profiles import make_profile

NAMES = ("a", "b", "c", "d")
HOSTS = ("h", "h", "other", "other", "")
POOL = 64
PERIOD_S = 0.5
FIELDS = st.fixed_dictionaries(
    {
        "free_blocks": st.integers(0, POOL),
        "lendable_blocks": st.integers(0, POOL),
        "running": st.integers(0, 9),
        "waiting_sizes": st.lists(st.integers(0, 40), max_size=4).map(tuple),
        "growing_blocks": st.integers(0, 30),
        "step_s": st.sampled_from([0.0, 0.01, 0.1]),
        "context_tokens": st.integers(0, 4000),
        "borrowed_blocks": st.sampled_from([0, 0, 5]),
        "lent_blocks": st.sampled_from([0, 0, 5]),
        "longest": st.lists(
            st.builds(LongRequest, st.sampled_from("rst"), st.integers(1, 40), st.integers(0, 9)),
            max_size=3,
            unique_by=lambda one: one.request_id,
        ).map(tuple),
        "debtors": st.lists(
            st.builds(Debtor, st.sampled_from(NAMES), st.integers(0, 9)), max_size=3, unique_by=lambda d: d.instance_id
        ).map(tuple),
    }
)

FULL = st.fixed_dictionaries(
    {
        "free_blocks": st.integers(0, 8),
        "running": st.integers(1, 3),
        "waiting_sizes": st.sampled_from([(), (), (10,), (20, 30)]),
        "step_s": st.just(0.01),
        "context_tokens": st.integers(0, 4 * POOL),
        "longest": st.tuples(st.builds(LongRequest, st.sampled_from("rs"), st.integers(20, 40), st.integers(0, 9))),
    }
)
EMPTY = st.fixed_dictionaries(
    {
        "free_blocks": st.integers(40, POOL),
        "lendable_blocks": st.integers(30, 40),
        "running": st.integers(0, 1),
        "waiting_sizes": st.sampled_from([(), (), (50,)]),
    }
)

Told = tuple[Entry, MoveKvcache]
"""A move, and its debtor."""


class Planning(RuleBasedStateMachine):
    """Instances tell anything; `before` is what was sent and may come again, late. Each policy has promises of its own
    besides."""

    policy: ClassVar[PolicyName]

    def __init__(self) -> None:
        super().__init__()
        self.now = 100.0
        self.advice = AdviceSettings(policy=self.policy)
        self.gm = GManager(MembershipSettings(heartbeat_s=PERIOD_S), self.advice, incarnation=9)
        self.lives = dict.fromkeys(NAMES, 0)
        self.seqs: dict[str, int] = {}
        self.before: list[tuple[str, bytes, tg.Heartbeat]] = []
        self.newest = PlanEpoch(9, 0)
        self.moved_at: dict[str, float] = {}
        self.dropped_at: dict[str, float] = {}
        for name in NAMES:
            self.join(name)

    def route(self, name: str) -> bytes:
        return f"{name}:{self.lives[name]}".encode()

    @rule(name=st.sampled_from(NAMES), has_profile=st.booleans(), host=st.sampled_from(HOSTS))
    def join(self, name: str, has_profile: bool = True, host: str = HOSTS[0]) -> None:
        """A new process under the name; it replaces the one before if that is silent by then, and else it ends."""
        self.lives[name] += 1
        data = DataEndpoint(address=f"sim://{name}:1", host_key=host)
        member = make_member(name, incarnation=self.lives[name], free_blocks=POOL, data=data)
        profile = make_profile() if has_profile else None
        self.hear(name, self.route(name), tg.Join(member=member, compat="model", profile=profile))
        if self.gm.ledger.entries[name].member.incarnation == self.lives[name]:
            self.seqs[name] = 0
        else:
            self.lives[name] -= 1

    @rule(name=st.sampled_from(NAMES), fields=FIELDS, is_lost=st.booleans())
    def beat(self, name: str, fields: dict[str, Any], is_lost: bool) -> None:
        self.seqs[name] += 1
        sizes = fields.get("waiting_sizes", ())
        known: dict[str, Any] = {"waiting": len(sizes), "max_num_seqs": 64}
        known["waiting_tokens"] = tuple(16 * size * (size % 2) for size in sizes)
        beat = tg.Heartbeat(
            instance_id=name,
            incarnation=self.lives[name],
            seq=self.seqs[name],
            base=0,
            full=True,
            total_blocks=POOL,
            **known | fields,
        )
        self.before.append((name, self.route(name), beat))
        if not is_lost:
            self.hear(name, self.route(name), beat)

    @rule(full=st.sampled_from(NAMES), fields=FULL, others=st.lists(EMPTY, min_size=3, max_size=3))
    def fill(self, full: str, fields: dict[str, Any], others: list[dict[str, Any]]) -> None:
        """One has hardly any memory left, and all others nearly all of it, when the next plan is made."""
        self.beat(full, fields, is_lost=False)
        for name, other in zip((name for name in NAMES if name != full), others, strict=True):
            self.beat(name, other, is_lost=False)
        self.wait(1.0)

    @rule(back=st.integers(0, 6))
    def late(self, back: int) -> None:
        """One of the last heartbeats comes (again), perhaps behind a newer one, or of a former process."""
        if back < len(self.before):
            self.hear(*self.before[-1 - back])

    @rule(periods=st.sampled_from([0.5, 1.0, 1.0, 4.0, 12.0]))
    def wait(self, periods: float) -> None:
        self.now += periods * PERIOD_S
        self.take(self.gm.handle(Tick(), self.now))

    def hear(self, sender: str, route: bytes, message: tg.Join | tg.Heartbeat) -> None:
        commands = self.gm.handle(GManagerRequested(sender, route, message), self.now)
        assert not any(isinstance(one, Answer) and isinstance(one.body, MoveKvcache) for one in commands)

    def take(self, commands: list[GManagerCommand]) -> None:
        """What was planned names debtors that run, what they have, and what others could lend by their last word."""
        answers = [one for one in commands if isinstance(one, Answer) and isinstance(one.body, MoveKvcache)]
        moves = [(one.route, one.body) for one in answers if isinstance(one.body, MoveKvcache)]
        told: list[Told] = []
        taken: dict[str, int] = {}
        for route, move in moves:
            entry = self.gm.ledger.entries[route.decode().partition(":")[0]]
            beat = entry.heartbeat
            assert beat is not None and entry.state == "ready" and route == entry.route
            assert (move.debtor_incarnation, move.seq) == (entry.member.incarnation, beat.seq)
            assert self.newest < move.epoch
            self.newest = move.epoch
            (request,) = (one for one in beat.longest if one.request_id == move.request_id)
            if move.destination == entry.member.instance_id:
                assert 0 < move.num_blocks <= min(request.remote_blocks, beat.free_blocks - beat.growing_blocks)
                assert not beat.waiting
            else:
                assert 0 < move.num_blocks <= request.movable_blocks
                taken[move.destination] = taken.get(move.destination, 0) + move.num_blocks
            told.append((entry, move))
        for one in commands:
            if isinstance(one, Publish) and isinstance(one.event, events.MoveDropped):
                name = one.event.request_id
                if self.now - self.dropped_at.get(name, -1e9) >= COOL_S:
                    self.moved_at.pop(name, None)  # it was not moved, and may be at once, once in this time
                self.dropped_at[name] = self.now
        request_ids = {move.request_id for _, move in told}
        for request_id in request_ids:
            assert self.now - self.moved_at.get(request_id, -1e9) >= COOL_S
        self.moved_at |= dict.fromkeys(request_ids, self.now)
        for name, num_blocks in taken.items():
            entry = self.gm.ledger.entries[name]
            assert entry.state == "ready"
            assert num_blocks <= min(entry.lendable, entry.reported_free_blocks)
        self.look(told, taken)

    def look(self, told: list[Told], taken: dict[str, int]) -> None:
        """At what this policy plans. taken: rBlocks that leave, by creditor."""
        raise NotImplementedError

    @invariant()
    def is_valid(self) -> None:
        self.gm.validate()


class GreedyPlanning(Planning):
    """Nobody is to owe and to lend, and each move gains something."""

    policy = "greedy"

    def look(self, told: list[Told], taken: dict[str, int]) -> None:
        for entry, move in told:
            assert move.gain_tokens_per_s > 0
            is_homeward = move.destination == entry.member.instance_id
            assert entry.heartbeat is not None and (is_homeward or not entry.heartbeat.lent_blocks)
        assert not any(self.gm.ledger.entries[name].view().borrowed_blocks for name in taken)
        debtors = {entry.member.instance_id for entry, _ in told}
        assert not taken.keys() & debtors, "an instance is debtor and creditor at once"


class EvenPlanning(Planning):
    """What leaves is of the fullest of a host, who is too far ahead of the mean and remains ahead; it goes to one that
    does not get beyond the mean, and requests wait at neither."""

    policy = "even"

    def look(self, told: list[Told], taken: dict[str, int]) -> None:
        ahead, rounding = self.advice.even_ahead, 1 / PARTS
        hosts = [host_of(entry) for entry, _ in told]
        assert len(hosts) == len(set(hosts)) and "" not in hosts, "a host lets one request leave at a time"
        for debtor, move in told:
            creditor = self.gm.ledger.entries[move.destination]
            beside = [one for one in self.gm.ledger.entries.values() if host_of(one) == host_of(debtor)]
            uses = [used(one) for one in beside if one.state == "ready"]
            mean, moved = sum(uses) / len(uses), move.num_blocks / POOL
            assert creditor is not debtor and host_of(creditor) == host_of(debtor)
            assert not debtor.view().waiting and not creditor.view().waiting
            assert used(debtor) > max(uses) - rounding and used(debtor) > mean + ahead - rounding
            assert used(debtor) - moved >= mean + BELOW * ahead - rounding
            assert used(creditor) + moved <= mean + 1e-9
            assert move.gain_tokens_per_s >= 0


def host_of(entry: Entry) -> str:
    return "" if entry.member.data is None else entry.member.data.host_key


def used(entry: Entry) -> float:
    return 1 - entry.reported_free_blocks / POOL


TestGreedyPlanning, TestEvenPlanning = GreedyPlanning.TestCase, EvenPlanning.TestCase
TestGreedyPlanning.settings = TestEvenPlanning.settings = settings(
    max_examples=20, stateful_step_count=25, deadline=None
)
