"""Network: order within a channel, any order between channels, and loss."""

from __future__ import annotations

from random import Random

from hypothesis import given
from hypothesis import strategies as st

from distkv.sim.drawn.network import Network
from distkv.sim.machines.channel import Channel

A, B, SLOW = Channel("x", "y", "a"), Channel("x", "y", "b"), Channel("y", "x", "slow")


def drained(network: Network[int]) -> list[tuple[Channel, int]]:
    arrived = []
    while (drawn := network.draw(lambda channel: True)) is not None:
        arrived.append(drawn)
    return arrived


@given(st.lists(st.sampled_from([A, B, SLOW])), st.integers(0, 1000))
def test_all_arrives_once_and_each_channel_keeps_its_order(channels: list[Channel], seed: int) -> None:
    network: Network[int] = Network(Random(seed), {"slow": 0.9})
    for number, channel in enumerate(channels):
        network.send(channel, number)
    assert len(list(network.on_its_way())) == len(channels)
    arrived = drained(network)
    assert sorted(number for _, number in arrived) == list(range(len(channels)))
    for channel in (A, B, SLOW):
        numbers = [number for at, number in arrived if at == channel]
        assert numbers == sorted(numbers) == [n for n, at in enumerate(channels) if at == channel]
    assert not list(network.on_its_way())


def test_channels_overtake_each_other_as_the_seed_says() -> None:
    def order(seed: int) -> list[int]:
        network: Network[int] = Network(Random(seed), {})
        for number in range(6):
            network.send((A, B)[number % 2], number)
        return [number for _, number in drained(network)]

    orders = {tuple(order(seed)) for seed in range(50)}
    assert len(orders) > 5, "20 are possible"
    assert order(3) == order(3)


def test_a_slow_channel_is_overtaken_but_not_for_ever() -> None:
    network: Network[int] = Network(Random(1), {"slow": 1.0})
    for number in range(5):
        network.send(SLOW, number)
        network.send(A, number)
    assert [channel.name for channel, _ in drained(network)] == ["a"] * 5 + ["slow"] * 5


def test_nothing_arrives_where_nobody_reads() -> None:
    network: Network[int] = Network(Random(1), {})
    network.send(A, 1)
    network.send(SLOW, 2)
    assert network.draw(lambda channel: channel.target == "x") == (SLOW, 2)
    assert network.draw(lambda channel: channel.target == "x") is None
    assert list(network.on_its_way()) == [(A, 1)]


def test_what_is_lost_does_not_arrive() -> None:
    network: Network[int] = Network(Random(1), {})
    for channel in (A, B, SLOW):
        network.send(channel, 1)
    network.lose(lambda channel: channel.source == "x")
    assert drained(network) == [(SLOW, 1)]


def test_a_lossy_network_loses_and_repeats_only_what_leaves_its_instance() -> None:
    network: Network[int] = Network(Random(1), {})
    network.loss = network.duplication = 0.2
    within = Channel("x", "x", "steps")
    for number in range(200):
        network.send(A, number)
        network.send(within, number)
    arrived = drained(network)
    assert [number for channel, number in arrived if channel == within] == list(range(200))
    got = [number for channel, number in arrived if channel == A]
    assert len(set(got)) < 200, "some are lost"
    assert len(got) > len(set(got)), "some come more than once"
    assert [number for at, number in enumerate(got) if number not in got[:at]] == sorted(set(got)), "in order at first"
