"""The ledger under heartbeats that are lost, repeated, overtaken and stale, with queries in between."""

from __future__ import annotations

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from distkv.wire.messages import to_gmanager as tg
from distkv.wire.messages.common import Member
from tests.control.cluster.managed import Managed
from tests.control.parts import make_member
from tests.examples import examples

NAMES = ("a", "b", "c")
NAME = st.sampled_from(NAMES)
TOTAL = 16
AMOUNT = st.integers(0, 2 * TOTAL)


class Hearing(RuleBasedStateMachine):
    """Three instances that tell what they have, or lie. What the ledger shows is never below nothing, and never more
    than an instance joined with; what was promised and has not arrived, or is held
    since the newest heartbeat, is missing in it."""

    def __init__(self) -> None:
        super().__init__()
        self.managed = Managed()
        self.sent: list[tg.Heartbeat] = []
        self.incarnations = dict.fromkeys(NAMES, 1)
        self.seqs = dict.fromkeys(NAMES, 0)
        for name in NAMES:
            self.managed.join(name, total_blocks=TOTAL)

    @rule(name=NAME, free=AMOUNT, lendable=AMOUNT, waiting=st.integers(0, 2), lost=st.booleans())
    def beat(self, lost: bool, name: str, free: int, lendable: int, waiting: int) -> None:
        self.seqs[name] += 1
        beat = tg.Heartbeat(
            instance_id=name,
            incarnation=self.incarnations[name],
            seq=self.seqs[name],
            base=max(0, self.seqs[name] - 2),
            full=self.seqs[name] % 3 == 1,
            free_blocks=free,
            lendable_blocks=lendable,
            waiting=waiting,
            prefill_tokens=free,
            arrived=("r",) * waiting,
            debtors=(tg.Debtor("c", lendable),) if waiting else (),
        )
        self.sent.append(beat)
        if not lost:
            self.managed.hear(name, beat)

    @rule(data=st.data())
    def come_late_or_again(self, data: Any) -> None:
        if self.sent:
            beat = data.draw(st.sampled_from(self.sent))
            before = self.managed.gm.ledger.entries[beat.instance_id].heartbeat
            self.managed.hear(beat.instance_id, beat)
            after = self.managed.gm.ledger.entries[beat.instance_id].heartbeat
            if before is not None and after is not None and before.incarnation == after.incarnation:
                assert after.seq >= before.seq, "an older one counted"

    @rule(name=NAME, num_blocks=st.integers(0, 40), refused=st.lists(st.tuples(NAME, AMOUNT), max_size=2))
    def ask(self, name: str, num_blocks: int, refused: list[tuple[str, int]]) -> None:
        refusals = tuple(tg.Refusal(*one) for one in refused)
        for creditor, blocks in self.managed.candidates(name, num_blocks=num_blocks, refusals=refusals):
            assert creditor != name and 0 < blocks <= TOTAL
            assert all(blocks <= free for refuser, free in refused if refuser == creditor), "a refusal was not heeded"

    @rule(num_tokens=st.integers(0, 200))
    def locate(self, num_tokens: int) -> None:
        ledger = self.managed.gm.ledger
        before = {name: entry.promises.num_requests for name, entry in ledger.entries.items()}
        chosen = self.managed.locate(num_tokens).instance_id
        after = {name: entry.promises.num_requests for name, entry in ledger.entries.items()}
        assert after == before | ({chosen: before[chosen] + 1} if chosen else {})

    @rule(name=NAME)
    def restart(self, name: str) -> None:
        self.incarnations[name] += 1
        self.seqs[name] = 0
        self.managed.tick(5.0)
        member: Member = make_member(name, self.incarnations[name], TOTAL)
        self.managed.hear(name, tg.Join(member=member, compat="model", swaps=True))

    @invariant()
    def shows_what_can_be(self) -> None:
        for view in self.managed.gm.ledger.available.all():
            assert 0 <= view.free_blocks <= TOTAL and 0 <= view.lendable_blocks <= TOTAL
            assert view.overdrawn_blocks >= 0 and not (view.overdrawn_blocks and view.free_blocks)
            entry = self.managed.gm.ledger.entries[view.instance_id]
            assert view.free_blocks + entry.promises.num_blocks - view.overdrawn_blocks <= TOTAL
            assert view.prefill_tokens >= entry.promises.prompt_tokens >= 0
            for debtor in NAMES:
                assert self.managed.gm.ledger.available.lent(view.instance_id, debtor) >= 0


TestHearing = Hearing.TestCase
TestHearing.settings = settings(max_examples=examples(60), stateful_step_count=30, deadline=None)
