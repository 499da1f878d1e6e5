"""FullnessIndex: hosts by how far their fullest instance is ahead, whatever changes."""

from __future__ import annotations

from random import Random

import pytest

from distkv.control.cluster.planning.fullness import PARTS, Fullness, FullnessIndex
from tests.control.parts import calls


def test_it_is_as_if_all_were_looked_at() -> None:
    random, index, known = Random(1), FullnessIndex(), dict[str, Fullness]()
    for _ in range(2000):
        name = f"i{random.randrange(12)}"
        if random.random() < 0.2:
            known.pop(name, None)
            index.put(name, None)
        else:
            known[name] = Fullness(f"h{random.randrange(4)}", random.randrange(PARTS + 1))
            index.put(name, known[name])
        hosts: dict[str, list[tuple[int, str]]] = {}
        for one, (host_key, parts) in known.items():
            hosts.setdefault(host_key, []).append((parts, one))
        found = list(index.uneven(None))
        assert {uneven.host_key for uneven in found} == {key for key, filed in hosts.items() if len(filed) > 1}
        assert found == sorted(found) and all(list(index.uneven(at)) == found[n + 1 :] for n, at in enumerate(found))
        for uneven in found:
            filed = sorted(hosts[uneven.host_key])
            mean = sum(parts for parts, _ in filed) / len(filed) / PARTS
            assert index.mean(uneven.host_key) == pytest.approx(mean)
            assert -uneven.minus_ahead == pytest.approx(filed[-1][0] / PARTS - mean)
            assert list(index.emptiest(uneven.host_key)) == [name for _, name in filed]
            assert index.fullest(uneven.host_key) == filed[-1][1]


def test_a_change_costs_the_same_however_many_there_are() -> None:
    costs = []
    for count in (10, 1000, 10_000):
        index = FullnessIndex()
        for number in range(count):
            index.put(f"i{number}", Fullness(f"h{number // 8}", number % PARTS))
        costs.append(calls(lambda: index.put("i3", Fullness("h0", 500))))  # noqa: B023
    assert costs[0] == costs[1] == costs[2]
