"""Borrower: a grant counts when the own worker is linked to the creditor, too."""

from __future__ import annotations

import pytest

from distkv.control.loan.debtor.borrow import Borrow
from distkv.control.loan.debtor.borrowing import LINK_TIMEOUT_S
from distkv.control.loan.debtor.paths import Path
from distkv.wire.messages.common import ANY_EPOCH
from distkv.wire.messages.from_worker import Linked
from distkv.wire.messages.to_rmanager import Release
from distkv.wire.messages.to_worker import Link
from tests.control.loan.asking import Asking, asking_for, bodies


def unlinked(*peers: str) -> tuple[Asking, Borrow]:
    """Peers that the worker has no links to, and a borrow of 2 that tries the first."""
    asking = Asking(peers)
    for name in peers:
        asking.state.paths.forget(name)
    borrow = asking.start(2)
    asking.candidates(borrow, *((name, 9) for name in peers))
    return asking, borrow


def linked(asking: Asking, creditor: str, problem: str = "") -> list[str]:
    """The worker answers; returns whose grants go back."""
    message = Linked(instance_id=creditor, incarnation=1, problem=problem)
    return [debt.creditor_id for debt in asking.borrower.on_linked(message, asking.clock.now())]


@pytest.mark.parametrize("first", ["the grant", "the link"])
def test_a_grant_counts_when_the_worker_is_linked_to_its_creditor(first: str) -> None:
    asking, borrow = unlinked("p", "q")
    (link,) = [body for body in bodies(asking) if isinstance(body, Link)]
    assert (link.instance_id, link.incarnation) == ("p", 1)
    ask = asking_for(borrow)
    if first == "the link":
        assert linked(asking, "p") == []
    assert asking.grant("p", ask, 2)
    if first == "the grant":
        assert asking.borrower.active and asking.borrower.grants() == borrow.grants, "it is renewed meanwhile"
        assert linked(asking, "p") == []
    assert list(asking.borrower.finished) == [borrow] and borrow.granted == 2
    again = asking.start(2)
    asking.candidates(again, ("p", 9))
    assert [body for body in bodies(asking) if isinstance(body, Link)] == [], "it is linked already"


def test_the_worker_is_told_to_link_anew_where_the_path_has_failed_since_the_creditor_was_asked() -> None:
    """It was waited for, and nobody had told it."""
    asking, first = unlinked("p")
    linked(asking, "p")
    asking.borrower.cancel(first.seq)
    asking.state.commands.clear()
    borrow = asking.start(2)
    asking.candidates(borrow, ("p", 9))
    ask = asking_for(borrow)
    assert not [body for body in bodies(asking) if isinstance(body, Link)]
    asking.state.paths.failed(Path("me", "p"), "its partials are missing", asking.clock.now())
    assert asking.grant("p", ask, 2) and borrow.linking
    assert [body.instance_id for body in bodies(asking) if isinstance(body, Link)] == ["p"]
    assert linked(asking, "p") == [] and borrow.granted == 2 and not borrow.linking
    asking.borrower.validate()


def test_the_worker_is_told_to_link_anew_where_the_path_has_failed_since_it_was_linked() -> None:
    asking, borrow = unlinked("p")
    linked(asking, "p")
    asking.state.paths.failed(Path("me", "p"), "its partials are missing", asking.clock.now())
    ask = asking_for(borrow)
    asking.state.commands.clear()
    assert asking.grant("p", ask, 2) and borrow.linking
    assert [body.instance_id for body in bodies(asking) if isinstance(body, Link)] == ["p"]


@pytest.mark.parametrize("first", ["the grant", "the link"])
def test_a_creditor_that_cannot_be_reached_is_passed_over(first: str) -> None:
    """It grants all the same, however often it is asked."""
    asking, borrow = unlinked("p", "q")
    ask = asking_for(borrow)
    if first == "the grant":
        assert asking.grant("p", ask, 2)
        assert linked(asking, "p", "no route") == ["p"]
    else:
        assert linked(asking, "p", "no route") == []
        assert not asking.grant("p", ask, 2), "nobody waits for this grant any more"
        (release,) = [body for body in bodies(asking) if isinstance(body, Release)]
        assert (release.span.span_id, release.span.epoch) == (ask.span_id, ANY_EPOCH)
    assert borrow.trying == "q" and borrow.grants == []
    asking.grant("q", asking_for(borrow), 2)
    linked(asking, "q")
    assert list(asking.borrower.finished) == [borrow] and [debt.creditor_id for debt in borrow.grants] == ["q"]
    asking.state.commands.clear()
    later = asking.start(2)
    assert asking.query().suspects == ("p",)
    asking.candidates(later, ("p", 9), ("q", 1))
    assert later.trying == "q"


def test_a_worker_that_does_not_say_whether_it_is_linked_is_not_waited_for_for_ever() -> None:
    asking, borrow = unlinked("p")
    asking.grant("p", asking_for(borrow), 2)
    deadline = asking.borrower.next_deadline()
    assert deadline == asking.clock.now() + LINK_TIMEOUT_S
    silent, unusable = asking.borrower.tick(deadline)
    assert silent == [] and [debt.creditor_id for debt in unusable] == ["p"]
    asking.state.paths.tick(deadline + 0.75 * LINK_TIMEOUT_S - 0.1)
    assert asking.state.paths.is_in_doubt(Path("me", "p")), "for as long as memory was held for nothing"
    asking.borrower.validate()


def test_links_to_another_incarnation_are_none() -> None:
    asking, borrow = unlinked("p")
    asking.grant("p", asking_for(borrow), 2)
    asking.borrower.on_linked(Linked(instance_id="p", incarnation=2), asking.clock.now())
    assert borrow.linking
    asking.borrower.on_peer_lost("p", asking.clock.now())
    assert borrow.grants == [] and not borrow.linking
    asking.borrower.validate()
