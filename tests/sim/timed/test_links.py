"""Links between modelled instances: who shares which."""

from __future__ import annotations

from functools import partial

import pytest

from distkv.sim.timed.agenda import Agenda
from distkv.sim.timed.links import Links
from tests.sim.timed.parts import LINK, profile

MEGABYTE_S = 1e6 / LINK.bytes_per_s + LINK.round_trip_s


def read_s(reads: list[tuple[str, str]], *, network_shared: bool) -> list[float]:
    """Seconds until each of these (reader, source) has a megabyte, with a0, a1 on one host, b0 and c0 on others."""
    agenda, done = Agenda(), dict[int, float]()
    links = Links(profile(links={"host": LINK, "network": LINK}), agenda, network_shared=network_shared)
    for name in ("a0", "a1", "b0", "c0"):
        links.place(name, name[0])

    def arrived(index: int) -> None:
        done[index] = agenda.now()

    for index, (reader, source) in enumerate(reads):
        links.read(reader, source, 1_000_000, partial(arrived, index))
    agenda.run(10.0, lambda: len(done) == len(reads))
    return [done[index] for index in range(len(reads))]


@pytest.mark.parametrize(("network_shared", "seconds"), [(False, MEGABYTE_S), (True, 0.001 + MEGABYTE_S)])
@pytest.mark.parametrize("reads", [[("a0", "b0"), ("a1", "c0")], [("b0", "a0"), ("c0", "a1")]])
def test_instances_of_a_host_share_its_network_where_there_is_one(
    reads: list[tuple[str, str]], network_shared: bool, seconds: float
) -> None:
    assert read_s(reads, network_shared=network_shared) == pytest.approx([seconds, seconds])


def test_what_stays_within_a_host_does_not_use_its_network() -> None:
    assert read_s([("a0", "a1"), ("a1", "b0")], network_shared=True) == pytest.approx([MEGABYTE_S, MEGABYTE_S])


def test_both_directions_have_their_own_bandwidth() -> None:
    assert read_s([("a0", "b0"), ("b0", "a1")], network_shared=True) == pytest.approx([MEGABYTE_S, MEGABYTE_S])
