"""A gManager that plans, whatever heartbeats say, get lost, come twice or late: what it sends keeps its promises."""

from __future__ import annotations

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from distkv.config import AdviceSettings, MembershipSettings
from distkv.control.cluster.gmanager import GManager
from distkv.control.cluster.planning.plans import COOL_S
from distkv.control.commands import Answer, GManagerCommand, GManagerRequested, Tick
from distkv.wire.messages import to_gmanager as tg
from distkv.wire.messages.to_gmanager import Debtor, LongRequest
from distkv.wire.messages.to_rmanager import MoveKvcache, PlanEpoch
from tests.control.parts import make_member
from tests.control.performance.profiles import make_profile

NAMES = ("a", "b", "c", "d")
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


class Planning(RuleBasedStateMachine):
    """Instances tell anything; `before` is what was sent and may come again, late."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 100.0
        self.gm = GManager(MembershipSettings(heartbeat_s=PERIOD_S), AdviceSettings(policy="greedy"), incarnation=9)
        self.lives = dict.fromkeys(NAMES, 0)
        self.seqs: dict[str, int] = {}
        self.before: list[tuple[str, bytes, tg.Heartbeat]] = []
        self.newest = PlanEpoch(9, 0)
        self.moved_at: dict[str, float] = {}
        for name in NAMES:
            self.join(name)

    def route(self, name: str) -> bytes:
        return f"{name}:{self.lives[name]}".encode()

    @rule(name=st.sampled_from(NAMES), has_profile=st.booleans())
    def join(self, name: str, has_profile: bool = True) -> None:
        """A new process under the name; it replaces the one before, if that is silent by then."""
        self.lives[name] += 1
        self.seqs[name] = 0
        member = make_member(name, incarnation=self.lives[name], free_blocks=POOL)
        profile = make_profile() if has_profile else None
        self.hear(name, self.route(name), tg.Join(member=member, compat="model", profile=profile))

    @rule(name=st.sampled_from(NAMES), fields=FIELDS, is_lost=st.booleans())
    def beat(self, name: str, fields: dict[str, Any], is_lost: bool) -> None:
        self.seqs[name] += 1
        known: dict[str, Any] = {"waiting": len(fields["waiting_sizes"]), "max_num_seqs": 64}
        known["waiting_tokens"] = tuple(16 * size * (size % 2) for size in fields["waiting_sizes"])
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
        taken: dict[str, int] = {}
        senders = set()
        for route, move in moves:
            debtor = route.decode().partition(":")[0]
            entry = self.gm.ledger.entries[debtor]
            beat = entry.heartbeat
            assert beat is not None and entry.state == "ready" and route == entry.route
            assert (move.debtor_incarnation, move.seq) == (entry.member.incarnation, beat.seq)
            assert self.newest < move.epoch
            self.newest = move.epoch
            (request,) = (one for one in beat.longest if one.request_id == move.request_id)
            if move.destination == debtor:
                assert 0 < move.num_blocks <= min(request.remote_blocks, beat.free_blocks - beat.growing_blocks)
                assert not beat.waiting
            else:
                assert 0 < move.num_blocks <= request.movable_blocks and not beat.lent_blocks
                taken[move.destination] = taken.get(move.destination, 0) + move.num_blocks
            senders.add((debtor, move.request_id))
            assert move.gain_tokens_per_s > 0
        for _, request_id in senders:
            assert self.now - self.moved_at.get(request_id, -1e9) >= COOL_S
        self.moved_at |= {request_id: self.now for _, request_id in senders}
        for name, num_blocks in taken.items():
            entry = self.gm.ledger.entries[name]
            assert entry.state == "ready" and not entry.view().borrowed_blocks
            assert num_blocks <= min(entry.lendable, entry.reported_free_blocks)
        assert not taken.keys() & {debtor for debtor, _ in senders}, "an instance is debtor and creditor at once"

    @invariant()
    def is_valid(self) -> None:
        self.gm.validate()


TestPlanning = Planning.TestCase
TestPlanning.settings = settings(max_examples=20, stateful_step_count=25, deadline=None)
