"""Random histories: what happens to a cluster is a function of a seed; what was promised is checked at the end.

python -m tests.sim 4711            # live history 4711 again, action by action
python -m tests.sim 4711 --shrink   # ... and find fewer actions that fail alike
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Any

from distkv.config import AdviceSettings
from distkv.control.commands import FromGManager
from distkv.sim.drawn.client import Outcome
from distkv.sim.drawn.cluster import BLOCK, SimCluster
from distkv.sim.drawn.fake_worker import expected_output, logprobs_at
from distkv.types import PolicyName
from distkv.wire.messages.profile import Point
from distkv.wire.messages.to_rmanager import MoveKvcache, PlanEpoch
from tests.control.performance.profiles import HOST, make_profile
from tests.sim.parts import prompt

STEP_S = 0.02
PROFILE = make_profile(
    block_tokens=BLOCK,
    step=(Point(1, 10e-3), Point(64, 20e-3)),
    attention=(Point(1000, 200e-3),),
    serving=(Point(1000, 200e-3),),
    links={"host": HOST, "network": HOST},
)
"""Long keys and short links, so that moves pay."""
POOLS = [12, 20, 28, 16]
GMANAGERS = ("gmanager", "gmanager-2")
NAMES = [f"i{index}" for index in range(len(POOLS))]
Action = tuple[Any, ...]
"""The name of a method of `History`, and its arguments."""

SETTINGS: dict[str, list[Any]] = {
    "lease_s": [4.0, 4.0, 2.0, 6.0],
    "heartbeat_s": [0.5, 0.5, 0.25, 1.0],
    "max_num_seqs": [64, 64, 2],
    "staging_blocks": [1, 1, 0, 3],
    "lending_cap_blocks": [None, None, 6],
    "max_num_batched_tokens": [64, 64, 12],
}
"""Most instances agree; the others must be safe beside them."""


def _length(random: Random) -> int:
    return random.randint(1, random.choice([40, 200]))


ACTIONS: list[tuple[int, str, Callable[[Random], tuple[Any, ...]]]] = [
    (6, "submit", lambda r: (r.choice(NAMES), _length(r), r.randint(1, 25))),
    (2, "cancel", lambda r: (r.randint(0, 30),)),
    (2, "again", lambda r: (r.randint(0, 30),)),
    (5, "run", lambda r: (r.uniform(0.05, 1.5),)),
    (2, "kill", lambda r: (r.choice(NAMES), r.choice([0.0, r.uniform(0.0, 3.0)]), r.random() < 0.6)),
    (2, "freeze", lambda r: (r.choice(NAMES), r.uniform(0.5, 6.0))),
    (2, "stall_steps", lambda r: (r.choice(NAMES), r.uniform(0.5, 6.0))),
    (2, "cut", lambda r: tuple(r.sample(NAMES, 2))),
    (3, "cut_path", lambda r: (*r.sample(NAMES, 2), r.uniform(0.5, 20.0))),
    (2, "fail_pulls", lambda r: (r.choice(NAMES), r.uniform(0.5, 20.0))),
    (1, "kill_gmanager", lambda r: (r.choice(GMANAGERS), r.uniform(0.1, 6.0))),
    (2, "stall_gmanager", lambda r: (r.choice(GMANAGERS), r.uniform(0.5, 6.0))),
    (1, "drain", lambda r: (r.choice(NAMES),)),
]
"""How often an action is drawn, its name, and what draws its arguments."""


PLANNED: list[tuple[int, str, Callable[[Random], tuple[Any, ...]]]] = [
    (10, "submit", lambda r: (r.choice(NAMES), r.randint(8, 60), r.randint(60, 150))),
    (20, "plan", lambda r: (r.randint(0, 30), r.choice([*NAMES, "home", "home"]), r.randint(1, 8), r.randint(0, 5))),
    (10, "run", lambda r: (r.uniform(0.05, 0.15),)),
]
"""What happens besides under PLANS: whatever plan of whatever age."""
PLANS: tuple[PolicyName, ...] = ("greedy", "even")


def actions_of(seed: int, policy: PolicyName = "contract") -> list[Action]:
    """What happens in the history of this seed, in order."""
    random = Random(f"actions of {seed}")
    known = ACTIONS + PLANNED if policy in PLANS else ACTIONS
    weights, kinds = [weight for weight, *_ in known], [(name, draw) for _, name, draw in known]
    chosen = random.choices(kinds, weights, k=random.randint(3, 25))
    return [(name, *draw(random)) for name, draw in chosen]


class History:
    """Carries out actions on a cluster and knows what each request should bring."""

    def __init__(self, seed: int, policy: PolicyName = "contract") -> None:
        """policy: of the gManagers; those of PLANS have profiles to plan by."""
        random = Random(f"cluster of {seed}")
        gmanagers = GMANAGERS[: random.choice([1, 1, 2])]
        profile = PROFILE if policy in PLANS else None
        self._step_s = STEP_S if policy in PLANS else 0.0
        self._host = "one host" if policy == "even" else ""  # within which it evens
        advice = AdviceSettings(policy=policy, greedy_min_gain=0.0, even_ahead=0.1, dgfm_min_blocks=1)
        self.cluster = SimCluster([], seed, gmanagers, advice, request_timeout_s=5.0, profile=profile)
        for name, slots in zip(NAMES, POOLS, strict=True):
            self._start(name, slots, 1, {key: random.choice(values) for key, values in SETTINGS.items()})
        self.cluster.run(1.0)
        self.cluster.network.loss = random.choice([0.0, 0.0, 0.0, 0.02, 0.1])
        self.cluster.network.duplication = random.choice([0.0, 0.0, 0.0, 0.02, 0.2])
        self.wanted: dict[str, tuple[list[int], int]] = {}
        self._plans = 0
        self._mending: list[tuple[float, Callable[[], None]]] = []

    def act(self, kind: str, *args: Any) -> None:
        """Do one thing."""
        getattr(self, kind)(*args)
        self.forget_requests_of_the_dead()

    # --- what happens

    def submit(self, name: str, length: int, max_tokens: int) -> None:
        if self.cluster.nodes[name].runs and self.cluster.nodes[name].joined:
            request_id = f"r{len(self.wanted)}"
            self.wanted[request_id] = (prompt(length, len(self.wanted)), max_tokens)
            # Every second one has penalties, so that the worker keeps its tokens, and asks for logprobs.
            params = {"presence_penalty": 0.5, "logprobs": 0, "prompt_logprobs": 1} if length % 2 else {}
            self.cluster.submit(name, request_id, *self.wanted[request_id], can_move=length % 3 > 0, **params)

    def cancel(self, number: int) -> None:
        if self.is_running(f"r{number}"):
            self.cluster.cancel(f"r{number}")

    def again(self, number: int) -> None:
        """Cancel a request and use its name for another at once."""
        request_id = f"r{number}"
        if self.is_running(request_id):
            self.cluster.cancel(request_id)
            del self.cluster.outcomes[request_id]
            tokens, max_tokens = self.wanted[request_id]
            self.wanted[request_id] = ([*tokens[1:], 7], max_tokens)
            self.cluster.submit(
                self.cluster.owner[request_id], request_id, *self.wanted[request_id], repetition_penalty=1.5
            )

    def plan(self, number: int, destination: str, num_blocks: int, age: int) -> None:
        """A plan arrives, sometimes twice or late, whether it makes sense or not. age: in heartbeats."""
        running = [request_id for request_id in self.wanted if self.is_running(request_id)]
        if not running:
            return
        request_id = running[number % len(running)]
        owner = self.cluster.owner[request_id]
        node = self.cluster.nodes[owner]
        self._plans += age != 1
        move = MoveKvcache(
            request_id=request_id,
            num_blocks=num_blocks,
            destination=owner if destination == "home" else destination,
            epoch=PlanEpoch(1, self._plans),
            debtor_incarnation=node.settings.incarnation,
            seq=max(0, node.rm.newest_seq - age),
        )
        self.cluster.handle(owner, FromGManager(move))

    def run(self, seconds: float) -> None:
        """Let time pass; what is due is mended on the way."""
        end = self.cluster.clock.now() + seconds
        for at, mend in sorted(self._mending, key=lambda item: item[0]):
            if at <= end:
                self.cluster.run(max(0.0, at - self.cluster.clock.now()))
                mend()
        self._mending = [(at, mend) for at, mend in self._mending if at > end]
        self.cluster.run(max(0.0, end - self.cluster.clock.now()))

    def for_a_while(self, seconds: float, mend: Callable[[], None]) -> None:
        """A fault ends in so many seconds; other things go on meanwhile."""
        self._mending.append((self.cluster.clock.now() + seconds, mend))

    def kill(self, name: str, seconds: float, comes_back: bool) -> None:
        node = self.cluster.nodes[name]
        if node.alive:
            self.cluster.kill(name)
            self.forget_requests_of_the_dead()
            if comes_back:
                self.run(seconds)
                settings = {key: getattr(node.settings, key) for key in SETTINGS}
                self._start(name, node.settings.num_blocks, node.settings.incarnation + 1, settings)

    def _start(self, name: str, slots: int, incarnation: int, settings: dict[str, Any]) -> None:
        self.cluster.start(name, slots, incarnation, host=self._host, **settings)
        self.cluster.nodes[name].worker.step_s = self._step_s

    def freeze(self, name: str, seconds: float) -> None:
        if self.cluster.nodes[name].runs:
            self.cluster.freeze(name)
            self.for_a_while(seconds, lambda: self.cluster.freeze(name, False))

    def stall_steps(self, name: str, seconds: float) -> None:
        self.cluster.stall_steps(name)
        self.for_a_while(seconds, lambda: self.cluster.stall_steps(name, False))

    def cut(self, one: str, other: str) -> None:
        self.cluster.cut(one, other)

    def cut_path(self, reader: str, source: str, seconds: float) -> None:
        self.cluster.cut_path(reader, source)
        self.for_a_while(seconds, lambda: self.cluster.cut_path(reader, source, False))

    def fail_pulls(self, name: str, seconds: float) -> None:
        self.cluster.fail_pulls(name)
        self.for_a_while(seconds, lambda: self.cluster.fail_pulls(name, False))

    def kill_gmanager(self, name: str, seconds: float) -> None:
        if name in self.cluster.gmanagers and self.cluster.gmanagers[name].machine is not None:
            self.cluster.kill_gmanager(name)
            self.for_a_while(seconds, lambda: self.cluster.restart_gmanager(name))

    def stall_gmanager(self, name: str, seconds: float) -> None:
        if name in self.cluster.gmanagers and self.cluster.gmanagers[name].runs:
            self.cluster.stall_gmanager(name)
            self.for_a_while(seconds, lambda: self.cluster.stall_gmanager(name, False))

    def drain(self, name: str) -> None:
        if self.cluster.nodes[name].runs:
            self.cluster.drain(name, 5.0)

    def is_running(self, request_id: str) -> bool:
        owner = self.cluster.owner.get(request_id)
        return owner is not None and self.cluster.nodes[owner].runs and not self.cluster.outcomes[request_id].done

    def forget_requests_of_the_dead(self) -> None:
        for request_id, owner in list(self.cluster.owner.items()):
            if not self.cluster.nodes[owner].alive:
                del self.cluster.owner[request_id]

    # --- what was promised

    def check(self) -> None:
        """Once every fault is mended: right tokens or typed errors, and all memory back."""
        if self._mending:
            self.run(max(at for at, _ in self._mending) - self.cluster.clock.now())
        self.forget_requests_of_the_dead()
        self.cluster.finish(120)
        for request_id in self.cluster.owner:
            outcome, (tokens, max_tokens) = self.cluster.outcomes[request_id], self.wanted[request_id]
            expected = expected_output(tokens, max_tokens)
            assert outcome.tokens == expected[: len(outcome.tokens)]
            if outcome.finish == "length":
                assert outcome.tokens == expected
            self.check_logprobs(outcome, tokens)
            if outcome.ended is not None:
                assert outcome.ended.reason or outcome.ended.needed_tokens > outcome.ended.pool_tokens
        self.cluster.network.loss = self.cluster.network.duplication = 0.0
        self.cluster.settle(12)

    def check_logprobs(self, outcome: Outcome, tokens: list[int]) -> None:
        """Those that were requested, each once and in order."""
        if outcome.prompt_logprobs:
            wanted = [None, *(logprobs_at(i, token, 1) for i, token in enumerate(tokens) if i)]
            assert outcome.prompt_logprobs == wanted[: len(outcome.prompt_logprobs)]
            assert len(outcome.prompt_logprobs) == len(wanted) or not outcome.tokens
            start = len(tokens)
            assert outcome.logprobs == [logprobs_at(start + i, token, 0) for i, token in enumerate(outcome.tokens)]


def live(seed: int, actions: Sequence[Action] | None = None, policy: PolicyName = "contract") -> History:
    """Live the history of a seed, or other actions on its cluster. Whatever fails says how to live it again."""
    try:
        history = History(seed, policy)
        for action in actions_of(seed, policy) if actions is None else actions:
            history.act(*action)
        history.check()
    except Exception as error:
        how = "" if policy == "contract" else f" --policy {policy}"
        error.add_note(f"live it again: python -m tests.sim {seed}{how}")
        raise
    return history


def shrunk(seed: int, policy: PolicyName = "contract") -> list[Action]:
    """Fewer actions on the seed's cluster that fail with an error of the same type; [] if its history does not fail."""

    def failure(actions: Sequence[Action]) -> type[Exception] | None:
        try:
            live(seed, actions, policy)
        except Exception as error:
            return type(error)
        return None

    actions = actions_of(seed, policy)
    kind = failure(actions)
    if kind is None:
        return []
    size = len(actions) // 2
    while size:
        for start in range(len(actions) - size, -1, -size):
            fewer = actions[:start] + actions[start + size :]
            if failure(fewer) is kind:
                actions = fewer
        size //= 2
    return actions
