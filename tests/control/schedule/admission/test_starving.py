"""Those that the live instances cannot hold: nobody waits behind them, and they wait for memory to come back."""

from __future__ import annotations

from distkv.control.request.sequence import Sequence
from distkv.control.schedule.admission.waiting import AGED_S
from distkv.wire.messages.to_gmanager import BorrowQuery
from tests.control.parts import issued, make_member
from tests.control.schedule.admitting import RUNNING, WAITING, Admitting


def with_giant() -> tuple[Admitting, Sequence]:
    """An instance of 16 rBlocks at which a request of 40 has waited for long; the peer that had more is gone."""
    admitting = Admitting(16, peers=("p",))
    comes(admitting, alive=True)
    giant = admitting.wait("giant", 40, arrival=admitting.clock.now())
    look(admitting)
    admitting.end(admitting.borrow())
    comes(admitting, alive=False)
    admitting.clock.advance(AGED_S + 1.0)
    look(admitting)
    assert giant.starves and giant.state is WAITING
    issued(admitting.state, BorrowQuery)
    return admitting, giant


def comes(admitting: Admitting, *, alive: bool) -> None:
    state = "ready" if alive else "dead"
    admitting.state.members["p"] = make_member("p", free_blocks=48, total_blocks=48, lendable_blocks=48, state=state)


def look(admitting: Admitting) -> None:
    queue, state = admitting.state.sequences.queue, admitting.state
    assert queue.starvation.judge(state.cluster_blocks(), admitting.clock.now(), 10) == []
    admitting.admit()


def test_as_many_as_fit_begin_and_none_borrows_for_it() -> None:
    """More than it needs itself, one after the other: nothing is kept for what cannot begin."""
    admitting, giant = with_giant()
    for number in range(20):
        seq = admitting.wait(f"s{number}", 4, arrival=admitting.clock.now())
        look(admitting)
        assert seq.state is RUNNING
        admitting.holdings.preempt(seq, admitting.clock.now(), "its end")
        del admitting.state.sequences[seq.request_id]
        admitting.clock.advance(0.5)
    assert giant.state is WAITING and issued(admitting.state, BorrowQuery) == []
    assert admitting.admission.lacking(admitting.clock.now()).seq is None


def test_it_is_first_again_when_the_memory_is_back() -> None:
    admitting, giant = with_giant()
    comes(admitting, alive=True)
    younger = admitting.wait("larger", 30, arrival=admitting.clock.now())
    look(admitting)
    assert not giant.starves and giant in admitting.state.sequences.queue.aged
    assert admitting.borrow().seq is giant and younger.state is WAITING
