"""GManager: strangers, which serve something else than those that are in the cluster."""

from __future__ import annotations

from distkv import events
from distkv.control.cluster.joining import MOST_TURNED_OUT, NEW_S
from distkv.log.line_limit import BURST_LINES
from distkv.wire.messages import to_gmanager as tg
from distkv.wire.messages.to_rmanager import JoinRefused
from tests.control.cluster.managed import Managed
from tests.control.parts import make_member


def test_who_was_in_the_cluster_before_goes_before_strangers_that_a_new_gmanager_has_let_in(managed: Managed) -> None:
    """Else one that is set up wrongly, and tries to join over and over, has the cluster to itself when the gManager
    is started again, and generates tokens of another model."""
    managed.join("starts", compat="", state="starting")
    managed.join("wrong", compat="another", serves="dtype float16")
    managed.beat("wrong")
    managed.join("a", serves="dtype float32", belongs=True)
    (refused,) = managed.answers(JoinRefused, "wrong")
    assert refused.reason == (
        "a, which was in the cluster before, serves dtype float32 (not float16); one cluster serves one"
    )
    assert managed.states() == {"a": "ready", "starts": "starting", "wrong": "dead"} and managed.events(events.Joined)
    managed.beat("wrong")
    managed.join("wrong", compat="another", belongs=True)
    assert managed.answers(JoinRefused, "wrong") and managed.states()["wrong"] == "dead"
    managed.join("b")
    assert managed.states()["b"] == "ready"


def test_of_two_that_were_in_a_cluster_the_first_is_let_in(managed: Managed) -> None:
    managed.join("a", belongs=True)
    managed.join("b", compat="another", belongs=True)
    assert managed.answers(JoinRefused, "b") and managed.states() == {"a": "ready"}


def test_many_strangers_stay_and_whoever_was_there_for_a_while(managed: Managed) -> None:
    for number in range(MOST_TURNED_OUT + 1):
        managed.join(f"a{number}")
    managed.join("b", compat="another", belongs=True)
    assert managed.answers(JoinRefused, "b") and set(managed.states().values()) == {"ready"}
    other = Managed()
    other.join("a")
    for _ in range(int(NEW_S / 0.25)):
        other.beat("a")
        other.tick(0.25)
    other.join("b", compat="another", belongs=True)
    assert other.answers(JoinRefused, "b") and other.states() == {"a": "ready"}


# --- two of one name, clocks, strangers


def test_strangers_fill_no_log(managed: Managed) -> None:
    managed.join("a")
    lines = 0
    for _ in range(500):
        managed.hear("stranger", tg.Leave(instance_id="a", incarnation=1))
        lines += len(managed.events(events.ClaimRefused))
        managed.hear("stranger", tg.Join(member=make_member("b", state="dead"), compat="model"))
        lines += len(managed.events(events.JoinRefused))
    assert lines == 2 * BURST_LINES
    managed.tick(2.0)
    managed.hear("stranger", tg.Leave(instance_id="a", incarnation=1))
    (line,) = managed.events(events.ClaimRefused)
    assert line.left_out == 500 - BURST_LINES, "none is lost from the count"
