"""Whatever happens to a cluster, every promise holds: random histories of requests and faults."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from distkv.sim.client import Outcome
from distkv.sim.cluster import SimCluster
from distkv.sim.fake_worker import expected_output, logprobs_at
from tests.sim.parts import prompt

POOLS = [12, 20, 28, 16]
NAMES = st.integers(0, len(POOLS) - 1).map(lambda i: f"i{i}")
LENGTHS = st.one_of(st.integers(1, 40), st.integers(1, 200))
ACTIONS = st.one_of(
    st.tuples(st.just("submit"), NAMES, LENGTHS, st.integers(1, 25)),
    st.tuples(st.just("submit"), NAMES, LENGTHS, st.integers(1, 25)),
    st.tuples(st.just("cancel"), st.integers(0, 30)),
    st.tuples(st.just("again"), st.integers(0, 30)),
    st.tuples(st.just("run"), st.floats(0.05, 1.5)),
    st.tuples(st.just("kill"), NAMES, st.floats(0.0, 3.0), st.booleans()),
    st.tuples(st.just("freeze"), NAMES, st.floats(0.5, 6.0)),
    st.tuples(st.just("cut"), NAMES, NAMES),
    st.tuples(st.just("gm"), st.floats(0.1, 3.0)),
    st.tuples(st.just("drain"), NAMES),
)
LEASES_S = [4.0, 4.0, 2.0, 6.0]
"""Most instances agree; whoever lends for less is to be believed."""
HISTORIES = st.lists(ACTIONS, min_size=3, max_size=25)


class History:
    """Carries out actions on a cluster and knows what each request should bring."""

    def __init__(self, seed: int) -> None:
        self.cluster = SimCluster([], seed, request_timeout_s=5.0)
        for index, slots in enumerate(POOLS):
            self.cluster.start(f"i{index}", slots, lease_s=self.cluster.random.choice(LEASES_S))
        self.cluster.run(1.0)
        self.wanted: dict[str, tuple[list[int], int]] = {}

    def act(self, kind: str, *args: object) -> None:
        getattr(self, kind)(*args)

    def submit(self, name: str, length: int, max_tokens: int) -> None:
        if self.is_up(name):
            request_id = f"r{len(self.wanted)}"
            self.wanted[request_id] = (prompt(length, len(self.wanted)), max_tokens)
            # Every second one has penalties, so that the worker keeps its tokens, and asks for logprobs.
            params = {"presence_penalty": 0.5, "logprobs": 0, "prompt_logprobs": 1} if length % 2 else {}
            self.cluster.submit(name, request_id, *self.wanted[request_id], **params)

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

    def run(self, seconds: float) -> None:
        self.cluster.run(seconds)

    def kill(self, name: str, seconds: float, comes_back: bool) -> None:
        node = self.cluster.nodes[name]
        if node.alive:
            self.cluster.kill(name)
            self.forget_requests_of_the_dead()
            if comes_back:
                self.cluster.run(seconds)
                self.cluster.start(
                    name, node.settings.num_blocks, node.settings.incarnation + 1, lease_s=node.settings.lease_s
                )

    def freeze(self, name: str, seconds: float) -> None:
        if self.is_up(name):
            self.cluster.freeze(name)
            self.cluster.run(seconds)
            self.cluster.freeze(name, False)

    def cut(self, one: str, other: str) -> None:
        if one != other:
            self.cluster.cut(one, other)

    def gm(self, seconds: float) -> None:
        self.cluster.kill_gmanager()
        self.cluster.run(seconds)
        self.cluster.restart_gmanager()

    def drain(self, name: str) -> None:
        if self.cluster.nodes[name].alive:
            self.cluster.drain(name, 5.0)

    def is_up(self, name: str) -> bool:
        node = self.cluster.nodes[name]
        return node.alive and not node.frozen

    def is_running(self, request_id: str) -> bool:
        owner = self.cluster.owner.get(request_id)
        return owner is not None and self.is_up(owner) and not self.cluster.outcomes[request_id].done

    def forget_requests_of_the_dead(self) -> None:
        for request_id, owner in list(self.cluster.owner.items()):
            if not self.cluster.nodes[owner].alive:
                del self.cluster.owner[request_id]

    def check(self) -> None:
        """What was promised: right tokens or typed errors, and all memory back."""
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
        self.cluster.settle(12)

    def check_logprobs(self, outcome: Outcome, tokens: list[int]) -> None:
        """Those that were requested, each once and in order."""
        if outcome.prompt_logprobs:
            wanted = [None, *(logprobs_at(i, token, 1) for i, token in enumerate(tokens) if i)]
            assert outcome.prompt_logprobs == wanted[: len(outcome.prompt_logprobs)]
            assert len(outcome.prompt_logprobs) == len(wanted) or not outcome.tokens
            start = len(tokens)
            assert outcome.logprobs == [logprobs_at(start + i, token, 0) for i, token in enumerate(outcome.tokens)]


def live(seed: int, actions: list[tuple[object, ...]]) -> None:
    history = History(seed)
    for kind, *args in actions:
        history.act(str(kind), *args)
        history.forget_requests_of_the_dead()
    history.check()


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.integers(0, 2**20), HISTORIES)
def test_any_history_keeps_every_promise(seed: int, actions: list[tuple[object, ...]]) -> None:
    """Invariants hold after every event (SimCluster checks), and at the end everything that was promised."""
    live(seed, actions)


@pytest.mark.slow
@pytest.mark.timeout(1200)
@settings(max_examples=800, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.integers(0, 2**20), HISTORIES)
def test_many_more_histories_keep_every_promise(seed: int, actions: list[tuple[object, ...]]) -> None:
    live(seed, actions)
