"""Requests that wait for memory go where there is some, in a cluster of state machines."""

from __future__ import annotations

from distkv import events
from distkv.control.rmanager.reports.heartbeats import EARLY_S
from distkv.sim.drawn.cluster import SimCluster
from distkv.wire.messages.counters import total
from tests.sim.parts import check, prompt


def redispatched(cluster: SimCluster) -> dict[str, str]:
    found = [event for _, event in cluster.events if isinstance(event, events.Redispatched)]
    return {event.request_id: event.instance for event in found}


def crowd(cluster: SimCluster, count: int, *, can_move: bool) -> None:
    """So many requests of 10 rBlocks at i0, whose pool holds one of them, two with what others lend."""
    for index in range(count):
        cluster.submit("i0", f"r{index}", prompt(16, index), 24, can_move=can_move)


def test_requests_leave_an_instance_without_memory_for_one_that_has_it() -> None:
    cluster = SimCluster([12, 60])
    crowd(cluster, 40, can_move=True)
    cluster.finish()
    went = redispatched(cluster)
    assert went and set(went.values()) == {"i1"}
    assert all(cluster.owner[request_id] == "i1" for request_id in went)
    for index in range(40):
        check(cluster, f"r{index}", prompt(16, index), 24)
    borrows = total(*(node.rm.state.counters for node in cluster.nodes.values())).borrows
    assert borrows <= 4 < len(went), "each fits its instance: only who is not sent on in time borrows"
    cluster.settle()


def test_who_comes_to_an_instance_without_memory_is_sent_on_before_the_next_period() -> None:
    cluster = SimCluster([12, 60])
    cluster.submit("i0", "large", prompt(16, 0), 24)
    assert cluster.run(10.0, lambda: cluster.nodes["i0"].rm.state.running())
    cluster.stall_steps("i0")
    for number in range(1, 5):
        cluster.submit("i0", f"r{number}", prompt(16, number), 24, can_move=True)
        cluster.run(0.6)
    waited_s = [event.waited_s for _, event in cluster.events if isinstance(event, events.Redispatched)]
    assert len(waited_s) == 4 and max(waited_s) < 2 * EARLY_S
    for number in range(1, 5):
        check(cluster, f"r{number}", prompt(16, number), 24)


def heartbeats_per_s(num_requests: int) -> float:
    """Of two instances that are full, while so many requests come to each in a second."""
    cluster = SimCluster([12, 12])
    for name in ("i0", "i1"):
        cluster.submit(name, f"first {name}", prompt(16, 0), 24)
        assert cluster.run(10.0, lambda name=name: cluster.nodes[name].rm.state.running())
        cluster.stall_steps(name)
    machines, seconds = [node.rm for node in cluster.nodes.values()], 4
    before = sum(machine.newest_seq for machine in machines)
    for number in range(seconds * num_requests):
        for name in ("i0", "i1"):
            cluster.submit(name, f"{name} {number}", prompt(16, number), 24, can_move=True)
        cluster.run(1 / num_requests)
    assert not redispatched(cluster)
    return (sum(machine.newest_seq for machine in machines) - before) / seconds / len(machines)


def test_where_all_are_full_heartbeats_do_not_grow_with_what_comes() -> None:
    few, many = heartbeats_per_s(1), heartbeats_per_s(20)
    assert many <= few + 1, f"{few} and {many} a second"


def test_requests_of_clients_that_cannot_follow_stay() -> None:
    cluster = SimCluster([12, 60])
    crowd(cluster, 8, can_move=False)
    cluster.finish()
    assert redispatched(cluster) == {}
    cluster.settle()


def test_nothing_goes_while_memory_is_short_everywhere() -> None:
    cluster = SimCluster([12, 12])
    for index in range(12):
        cluster.submit("i1", f"s{index}", prompt(16, 50 + index), 24)
    cluster.run(0.2)  # by then the gManager knows
    crowd(cluster, 4, can_move=True)
    assert cluster.run(10.0, lambda: all(cluster.outcomes[f"r{index}"].done for index in range(4)))
    assert not all(cluster.outcomes[f"s{index}"].done for index in range(12)), "memory was short there to the end"
    assert not redispatched(cluster)
    cluster.finish()
    cluster.settle()


def test_small_requests_do_not_wait_for_large_ones_where_others_of_these_wait_too() -> None:
    """A large one has all of an instance and some of the other, and takes long. One client's more of its like wait at
    both; a small one that comes to its instance goes to the other, and begins before those that it cannot hold."""
    cluster = SimCluster([64, 64])
    for number in range(60):
        cluster.submit(f"i{number % 2}", f"large{number}", prompt(320, number), 100)

    def full() -> list[str]:
        return [
            name for name, node in cluster.nodes.items() if node.rm.state.running() and not node.rm.state.lendable()
        ]

    assert cluster.run(10.0, full)
    (name,) = full()
    cluster.stall_steps(name)
    for number in range(3):
        cluster.submit(name, f"small{number}", prompt(8, number), 4, can_move=True)
    assert cluster.run(10.0, lambda: all(cluster.outcomes[f"small{number}"].done for number in range(3)))
    for number in range(3):
        check(cluster, f"small{number}", prompt(8, number), 4)
    assert set(redispatched(cluster)) == {"small0", "small1", "small2"}


def test_an_instance_that_dies_meanwhile_costs_nothing() -> None:
    cluster = SimCluster([12, 60, 60])
    crowd(cluster, 40, can_move=True)
    assert cluster.run(5.0, lambda: redispatched(cluster))
    gone = next(iter(redispatched(cluster).values()))
    cluster.kill(gone)
    for request_id in [one for one, name in cluster.owner.items() if name == gone]:
        del cluster.owner[request_id]
    cluster.finish()
    cluster.settle()
