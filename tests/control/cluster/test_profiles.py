from __future__ import annotations

from distkv.wire.messages import to_gmanager as tg
from distkv.wire.messages.to_rmanager import Members
from tests.control.cluster.managed import Managed
from tests.control.parts import make_member
from tests.control.performance.profiles import make_profile


def test_policies_see_the_profile_of_an_instance_as_it_joined_last(managed: Managed) -> None:
    first, second = make_profile(), make_profile(model="another")
    member = make_member("a", state="starting", total_blocks=16)
    managed.hear("a", tg.Join(member=member, compat=""))
    assert _seen(managed) is None
    for profile in (first, second, None):
        managed.hear("a", tg.Join(member=make_member("a", total_blocks=16), compat="model", profile=profile))
        managed.beat("a")
        assert _seen(managed) == profile


def test_other_instances_are_not_told_of_a_profile(managed: Managed) -> None:
    managed.join("a")
    managed.hear("a", tg.Join(member=make_member("a", total_blocks=16), compat="model", profile=make_profile()))
    managed.tick(1.0)
    assert managed.answers(Members) == []


def _seen(managed: Managed) -> object:
    view = managed.gm.ledger.available.get("a")
    assert view is not None
    return view.profile
