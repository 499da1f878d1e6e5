"""MemberTable: peers by what they have free, and the sums that requests are judged by."""

from __future__ import annotations

from random import Random

from distkv.control.rmanager.peers.member_table import GONE, MemberTable
from distkv.wire.messages.common import DataEndpoint
from tests.control.parts import make_member


def test_creditors_come_in_the_order_of_their_free_blocks() -> None:
    table = MemberTable()
    for name, free in (("p", 2), ("q", 7), ("r", 4), ("s", 7)):
        table[name] = make_member(name, free_blocks=free)
    assert [member.instance_id for member in table.creditors(0, 9)] == ["q", "s", "r", "p"]
    assert [member.instance_id for member in table.creditors(1, 3)] == ["s", "r"]
    assert [table.num_creditors_with(free) for free in (0, 2, 3, 5, 7, 8)] == [4, 4, 3, 2, 2, 0]
    table.suspects["q"] = 5.0
    del table["s"]
    table["p"] = make_member("p", free_blocks=9)
    assert [member.instance_id for member in table.creditors(0, 9)] == ["p", "r"] and table.num_creditors == 2
    table.validate()


def test_near_are_those_on_the_host_of_this_instance() -> None:
    table = MemberTable()
    for name, host, free in (("p", "a", 2), ("q", "b", 7), ("r", "a", 4), ("s", "", 7)):
        table[name] = make_member(name, free_blocks=free, data=DataEndpoint(address="sim://d", host_key=host))
    assert table.near_blocks == 0 and not any(map(table.is_near, table)), "nobody knows where this one is"
    table.place_on("a")
    assert table.near_blocks == 6 and [name for name in table if table.is_near(name)] == ["p", "r"]
    table.suspects["r"] = 5.0
    assert table.near_blocks == 2
    table.place_on("")
    assert table.near_blocks == 0 and not table.is_near("s"), "an unknown host is nobody's"


def test_order_and_sums_hold_whatever_happens() -> None:
    table, random = MemberTable(), Random(1)
    names, hosts = [f"i{number}" for number in range(8)], ("a", "b")
    for _ in range(500):
        name = random.choice(names)
        match random.randrange(5):
            case 0:
                state = random.choice(["ready", "draining", "unreachable", "dead"])
                data = random.choice([None, *(DataEndpoint(address="sim://d", host_key=key) for key in ("", *hosts))])
                table[name] = make_member(name, free_blocks=random.randrange(9), state=state, data=data)
            case 1:
                table.pop(name, None)
            case 2:
                table.suspects[name] = random.choice([1.0, GONE])
            case 3:
                table.suspects.pop(name, None)
            case 4:
                table.place_on(random.choice(hosts))
        table.validate()
