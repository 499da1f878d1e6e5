"""The greedy plan against looking at every plan, on small clusters.

python -m tests.control.cluster.policy.exhaustive [states]     # the table: how far from the best plan, and where
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from itertools import product
from random import Random
from statistics import mean
from typing import NamedTuple

import msgspec

from distkv.config import AdviceSettings
from distkv.control.cluster.planning.balance import BalanceIndex, place_of
from distkv.control.cluster.policy.greedy import GreedyPolicy
from distkv.control.cluster.policy.interface import InstanceView, Move, Uneven
from distkv.control.performance.model import MOST_SERVING, PerformanceModel
from distkv.wire.messages.profile import Point
from distkv.wire.messages.to_gmanager import LongRequest
from tests.control.performance.profiles import make_profile

BLOCK = 64
ROUNDS = 20
LEFT_FREE = 0.1
"""Of a creditor's pool, as `greedy_creditor_utilization` says by default."""
Cluster = dict[str, InstanceView]
Out = dict[str, int]
"""Blocks of one debtor by creditor."""


class Anything:
    """Nothing was planned lately."""

    def __init__(self) -> None:
        self.went_to: dict[bool, tuple[int, str] | None] = {True: None, False: None}
        self.came_from = ""
        self.evened: Uneven | None = None

    def may_leave(self, request_id: str) -> bool:
        return True

    def may_come_home(self, request_id: str) -> bool:
        return True

    def may_plan_for(self, debtor_id: str) -> bool:
        return True


def random_cluster(seed: int) -> Cluster:
    """2 to 4 instances with up to 6 requests that run; some more wait where memory is short."""
    random = Random(f"cluster {seed}")
    saturated = random.choice([4, 8, 32])
    steps = tuple(Point(size, 2e-3 * max(1.0, size / saturated)) for size in (1, 2, 4, 8, 16, 32, 64))
    token_s = random.choice([2e-6, 10e-6])
    attention, serving = Point(1000, 1000 * token_s), Point(1000, random.uniform(1000, 2000) * token_s)
    model = PerformanceModel(make_profile(step=steps, attention=(attention,), serving=(serving,), block_tokens=BLOCK))
    names = [f"i{index}" for index in range(random.randint(2, 4))]
    requests: dict[str, list[int]] = {name: [] for name in names}
    for _ in range(random.randint(1, 6)):
        requests[random.choice(names)].append(random.randint(1, 10))
    hosts = random.choice([("h", "h"), ("h", "x")])
    return {name: _instance(name, requests[name], model, random, random.choice(hosts)) for name in names}


def _instance(name: str, sizes: list[int], model: PerformanceModel, random: Random, host: str) -> InstanceView:
    total = max(random.choice([8, 12, 16]), sum(sizes))
    free = total - sum(sizes)
    growing = sum(random.randint(1, 3) for _ in sizes)
    sizes.sort(reverse=True)
    is_short = bool(sizes) and random.random() < 0.6
    waiting = tuple(random.randint(min(total, max(1, free - growing + 1)), total) for _ in range(random.randint(1, 4)))
    waiting = waiting if is_short and free - growing < total - 1 else ()
    return InstanceView(
        instance_id=name,
        state="ready",
        host_key=host,
        block_tokens=BLOCK,
        free_blocks=free,
        lendable_blocks=max(0, free - growing - 1) if not waiting else 0,
        waiting=len(waiting),
        load=len(waiting) + len(sizes),
        model=model,
        total_blocks=total,
        running=len(sizes),
        step_s=model.step_s(len(sizes), sum(sizes) * BLOCK) if sizes else 0.0,
        context_tokens=sum(sizes) * BLOCK,
        waiting_sizes=waiting,
        longest=tuple(LongRequest(f"{name}-{n}", size - 1, 0) for n, size in enumerate(sizes) if size > 1),
        growing_blocks=growing,
        max_num_seqs=64,
    )


# --- what a cluster generates if blocks lie so


class Side(NamedTuple):
    """One debtor with its blocks out in one way: what it generates, its steps, and at each creditor the share of each
    second that is spent on it."""

    rate: float
    shares: dict[str, float]


def admitted(view: InstanceView, freed: int) -> tuple[int, int]:
    """Those that run once so much is free, and the blocks of those that begin."""
    soon = int(view.running * 10.0 / (view.step_s * BLOCK)) if view.step_s else 0
    missing = min(view.growing_blocks, max(soon, view.running)) - view.free_blocks - freed
    used = max(1, (view.total_blocks - view.free_blocks) // max(1, view.running))
    batch, blocks = max(0, view.running - max(0, -(-missing // used))), 0
    room = view.free_blocks - view.growing_blocks + freed
    for size in view.waiting_sizes:
        if size <= room and batch < view.max_num_seqs:
            batch, blocks, room = batch + 1, blocks + size, room - size
    return batch, blocks


def side(cluster: Cluster, view: InstanceView, out: Out) -> Side | None:
    """None if what lies elsewhere would take longer than what the debtor computes meanwhile."""
    model = view.model
    assert model is not None
    batch, blocks = admitted(view, sum(out.values()))
    if not batch:
        return Side(0.0, {})
    kept = min(1.0, batch / view.running) if view.running else 1.0
    local = int(kept * max(0, view.context_tokens - sum(out.values()) * BLOCK)) + blocks * BLOCK
    alone_s = step_s = model.step_s(batch, local)
    shares = {}
    for name, num_blocks in out.items():
        other, tokens = cluster[name], num_blocks * BLOCK
        assert other.model is not None
        link, busy = "host" if other.host_key == view.host_key else "network", other.running > 0
        remote_s = model.remote_s(tokens, link=link, busy=busy, creditor=other.model)  # type: ignore[arg-type]
        if remote_s > alone_s:
            return None
        here_s = model.step_s(
            batch,
            local + tokens,
            remote_tokens=tokens,
            link=link,  # type: ignore[arg-type]
            busy=busy,
            creditor=other.model,
        )
        step_s = max(step_s, here_s)
        shares[name] = other.model.serving_s(tokens) * other.model.profile.serving_share
    return Side(batch / step_s, {name: share / step_s for name, share in shares.items()})


def alone(view: InstanceView) -> float:
    """What an instance generates that borrows nothing and lends nothing."""
    made = side({}, view, {})
    assert made is not None
    return made.rate


def total(cluster: Cluster, outs: dict[str, Out]) -> float:
    """Tokens that all generate each second with these blocks out."""
    sides = {name: side(cluster, cluster[name], out) for name, out in outs.items()}
    return combined(cluster, {name: one or Side(0.0, {}) for name, one in sides.items()})


def combined(cluster: Cluster, sides: dict[str, Side]) -> float:
    rate = sum(one.rate for one in sides.values())
    for name, view in cluster.items():
        if name not in sides:
            served = sum(one.shares.get(name, 0.0) for one in sides.values())
            rate += alone(view) * (1.0 - min(MOST_SERVING, served))
    return rate


# --- every plan, and the greedy one


def capacity(view: InstanceView) -> int:
    """Blocks that it could lend."""
    below = int((1 - LEFT_FREE) * view.total_blocks) - (view.total_blocks - view.free_blocks)
    return max(0, min(view.lendable_blocks, below))


def best(cluster: Cluster) -> float:
    """What the best of all plans generates: whoever sends blocks gets none."""
    most = sum(alone(view) for view in cluster.values())
    names = sorted(cluster)
    for roles in product((False, True), repeat=len(names)):
        debtors = [name for name, owes in zip(names, roles, strict=True) if owes and cluster[name].longest]
        creditors = [name for name, owes in zip(names, roles, strict=True) if not owes and capacity(cluster[name])]
        if debtors and creditors and len(debtors) == sum(roles):
            most = max(most, _best_of_roles(cluster, debtors, creditors))
    return most


def _best_of_roles(cluster: Cluster, debtors: list[str], creditors: list[str]) -> float:
    room = [capacity(cluster[name]) for name in creditors]
    rates = [alone(cluster[name]) for name in creditors]
    others = sum(alone(view) for name, view in cluster.items() if name not in debtors and name not in creditors)
    options = [list(_options(cluster, cluster[name], creditors, room)) for name in debtors]

    def look(index: int, left: list[int], rate: float, served: list[float]) -> float:
        if index == len(options):
            return rate + sum(r * (1.0 - min(MOST_SERVING, s)) for r, s in zip(rates, served, strict=True))
        most = 0.0
        for out, own, shares in options[index]:
            rest = [has - one for has, one in zip(left, out, strict=True)]
            if min(rest) >= 0:
                more = [a + b for a, b in zip(served, shares, strict=True)]
                most = max(most, look(index + 1, rest, rate + own, more))
        return most

    return others + look(0, room, 0.0, [0.0] * len(creditors))


def _options(
    cluster: Cluster, view: InstanceView, creditors: list[str], room: list[int]
) -> Iterator[tuple[tuple[int, ...], float, list[float]]]:
    movable = sum(one.movable_blocks for one in view.longest)
    for out in product(*(range(min(has, movable) + 1) for has in room)):
        if sum(out) <= movable:
            made = side(cluster, view, {name: n for name, n in zip(creditors, out, strict=True) if n})
            if made is not None:
                yield out, made.rate, [made.shares.get(name, 0.0) for name in creditors]


def planned(cluster: Cluster) -> tuple[float, int]:
    """What the cluster generates once greedy plans, each carried out before the next, end; and in how many moves."""
    outs: dict[str, Out] = {}
    policy, now, count = GreedyPolicy(AdviceSettings(policy="greedy")), dict(cluster), 0
    recent = Anything()
    for _ in range(ROUNDS):
        index = BalanceIndex(now.get, lambda name: outs.get(name, {}))
        for name, view in now.items():
            index.put(name, place_of(view))
        moves = policy.plan(index, recent)
        if not moves and not any(recent.went_to.values()):
            break
        for move in moves:
            count += 1
            assert not move.is_homeward, "what was planned to leave is not planned to come back"
            carry_out(now, move)
            out = outs.setdefault(move.debtor_id, {})
            out[move.creditor_id] = out.get(move.creditor_id, 0) + move.num_blocks
    return total(cluster, outs), count


def carry_out(cluster: Cluster, move: Move) -> None:
    """Blocks are where they were planned to be, but what waits has not begun yet."""
    debtor, creditor, count = cluster[move.debtor_id], cluster[move.creditor_id], move.num_blocks
    longest = tuple(
        LongRequest(one.request_id, one.movable_blocks - count, one.remote_blocks + count)
        if one.request_id == move.request_id
        else one
        for one in debtor.longest
    )
    room = debtor.free_blocks + count - debtor.growing_blocks
    waiting, begun = [], []
    for size in debtor.waiting_sizes:
        (begun if size <= room else waiting).append(size)
        room -= size if size <= room else 0
    cluster[move.debtor_id] = msgspec.structs.replace(
        debtor,
        longest=tuple(one for one in sorted(longest, key=lambda one: -one.movable_blocks) if one.movable_blocks),
        free_blocks=debtor.free_blocks + count - sum(begun),
        borrowed_blocks=debtor.borrowed_blocks + count,
        running=debtor.running + len(begun),
        waiting=len(waiting),
        waiting_sizes=tuple(waiting),
        context_tokens=debtor.context_tokens + sum(begun) * BLOCK,
        lendable_blocks=0,
    )
    cluster[move.creditor_id] = msgspec.structs.replace(
        creditor,
        free_blocks=creditor.free_blocks - count,
        lendable_blocks=creditor.lendable_blocks - count,
        lent_blocks=creditor.lent_blocks + count,
    )


class Compared(NamedTuple):
    """One random cluster: what it generates with nothing moved, by the greedy plan, and by the best one."""

    seed: int
    idle: float
    greedy: float
    best: float
    moves: int

    @property
    def gap(self) -> float:
        """How much of the best plan's rate the greedy one lacks."""
        return max(0.0, 1.0 - self.greedy / self.best) if self.best else 0.0


def compare(seed: int) -> Compared:
    cluster = random_cluster(seed)
    greedy, moves = planned(cluster)
    return Compared(seed, sum(alone(view) for view in cluster.values()), greedy, best(cluster), moves)


def table(found: list[Compared]) -> str:
    """Means and the worst, of all and of those where something could be gained."""
    lines = [f"{'clusters':30}{'number':>8}{'mean gap':>10}{'worst gap':>11}{'of seed':>9}{'gain':>8}{'best gain':>11}"]
    able = [one for one in found if one.best > 1.01 * one.idle]
    for name, some in (("all", found), ("a plan could gain 1 % or more", able)):
        worst = max(some, key=lambda one: one.gap)
        gains = [mean(rate / one.idle - 1 for one, rate in pairs if one.idle) for pairs in _rates(some)]
        lines.append(
            f"{name:30}{len(some):8}{mean(one.gap for one in some):10.2%}{worst.gap:11.2%}{worst.seed:9}"
            f"{gains[0]:8.1%}{gains[1]:11.1%}"
        )
    return "\n".join(lines)


def _rates(some: list[Compared]) -> list[list[tuple[Compared, float]]]:
    return [[(one, one.greedy) for one in some], [(one, one.best) for one in some]]


if __name__ == "__main__":
    number = int(sys.argv[1]) if len(sys.argv) > 1 else 500
    print(table([compare(seed) for seed in range(number)]))
