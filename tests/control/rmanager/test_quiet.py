"""Quiet decode: what is handed over together leaves an rManager as if each result had been handled when it came."""

from __future__ import annotations

from array import array
from collections import deque
from random import Random
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from distkv.control import commands as c
from distkv.control.request.answer.output import NoText
from distkv.control.request.block import BlockCounts
from distkv.control.rmanager.quiet import QuietDecode
from distkv.control.rmanager.state import RManagerSettings
from distkv.control.rmanager.state_machine import RManager
from distkv.types import SamplingParams
from distkv.wire.messages import from_worker as fw
from distkv.wire.messages import to_client as tc
from distkv.wire.messages import to_gmanager as tg
from distkv.wire.messages import to_rmanager as tr
from distkv.wire.messages import to_worker as tw
from distkv.wire.messages.counters import Counters
from tests.control.parts import BLOCK, make_member
from tests.examples import examples
from tests.token_ids import prompt_fields

CLIENT = b"client"
STEP_S = 0.01


class Decoding:
    """An rManager and a worker that answers every 10 ms. tokens: that clients got, by request."""

    def __init__(self, num_blocks: int = 64, **fields: Any) -> None:
        self.now = 10.0
        self.tokens: dict[str, list[int]] = {}
        self._steps: deque[tw.Step] = deque()
        usual = {"instance_id": "me", "incarnation": 7, "block_tokens": BLOCK, "vocab_size": 1000}
        self.rm = RManager(RManagerSettings(num_blocks=num_blocks, **usual | fields), NoText, Random(1))
        self.rm.introduce(make_member("me", 7), "model")
        self.handle(c.Tick())

    def handle(self, event: c.Event) -> list[object]:
        commands = self.rm.handle(event, self.now)
        self.rm.validate()
        bodies = [getattr(command, "body", command) for command in commands]
        for body in bodies:
            if isinstance(body, tw.Step):
                self._steps.append(body)
            elif isinstance(body, tc.TokenChunk):
                self.tokens.setdefault(body.request_id, []).extend(body.token_ids)
        return bodies

    def submit(self, name: str, num_tokens: int, **params: Any) -> None:
        prompt = tuple(range(num_tokens))
        sampling = SamplingParams(**{"temperature": 0.0, "ignore_eos": True} | params)
        submit = tr.Submit(request_id=name, params=sampling, **prompt_fields(prompt))
        self.handle(c.Tokenized(submit, array("i", prompt), CLIENT))

    def next_result(self, **fields: Any) -> fw.StepResult:
        """Of the oldest step that is not answered, 10 ms later."""
        self.now += STEP_S
        step = self._steps.popleft()
        results = tuple(
            fw.SeqResult(
                request_id=seq.request_id,
                attempt=seq.attempt,
                status="ok",
                token=None if seq.sample is None else seq.end % 1000,
            )
            for seq in step.seqs
        )
        return fw.StepResult(step_id=step.step_id, results=results, compute_s=STEP_S, **fields)

    def repeat(self) -> None:
        """The worker computes the newest step again, a position further."""
        newest = self._steps[-1]
        seqs = tuple(msgspec.structs.replace(seq, start=seq.start + 1, end=seq.end + 1) for seq in newest.seqs)
        self._steps.append(tw.Step(step_id=newest.step_id + 1, seqs=seqs))

    def one_by_one(self, count: int) -> list[object]:
        """The worker answers so many steps, if as many are in flight."""
        issued: list[object] = []
        for _ in range(count):
            if self._steps:
                issued += self.handle(c.FromWorker(self.next_result()))
        return issued

    def quiet(self) -> QuietDecode | None:
        return self.rm.quiet.begin(self.rm.next_deadline())

    def together(self, most: int) -> int:
        """Keep up to so many results and hand them over; returns how many these were."""
        quiet = self.quiet()
        if quiet is None:
            return 0
        before = deque(self._steps), self.now
        while len(quiet.results) < most:
            before = deque(self._steps), self.now
            if not quiet.takes(self.next_result(), self.now):
                self._steps, self.now = before
                break
            self.repeat()
        if quiet.results:
            continued = self.rm.continued(c.Decoded(tuple(quiet.results), tuple(quiet.times)))
            self.rm.validate()
            for name, token_ids in zip(continued.request_ids, continued.token_ids, strict=True):
                self.tokens[name].extend(token_ids)
            assert continued.texts == ("",) * len(continued.request_ids)
        return len(quiet.results)

    def state(self) -> dict[str, object]:
        """All that its decisions can depend on."""
        rm, state = self.rm, self.rm.state
        seqs = {
            seq.request_id: (
                list(seq.request.tokens),
                list(seq.uncomputed),
                (seq.pending, seq.attempt, seq.high_water),
                [(block.number, block.slot, block.full, block.counted) for block in seq.placement.blocks],
                [getattr(seq.placement.counts, name) for name in BlockCounts.__slots__],
            )
            for seq in state.sequences.values()
        }
        in_flight = [
            (step.step_id, step.decodes, [(part.start, part.end) for part in step.planned.values()])
            for step in state.scheduler.in_flight
        ]
        times = state.scheduler.times
        learned = vars(times), repr(state.serving)
        return {
            "sequences": seqs,
            "in flight": in_flight,
            "learned": learned,
            "pool": state.pool.num_free,
            "counters": state.counters,
            "deadline": rm.next_deadline(),
            "tokens": self.tokens,
        }


@settings(deadline=None, max_examples=examples(60))
@given(
    st.lists(st.tuples(st.integers(1, 3 * BLOCK), st.integers(1, 40)), min_size=1, max_size=6),
    st.integers(20, 90),
    st.lists(st.tuples(st.integers(0, 6), st.integers(1, 12)), min_size=1, max_size=5),
)
def test_kept_results_leave_what_single_ones_leave(
    requests: list[tuple[int, int]], num_blocks: int, plays: list[tuple[int, int]]
) -> None:
    """Some results one by one, then some together, and so on; beside all one by one."""
    single, kept = Decoding(num_blocks), Decoding(num_blocks)
    for decoding in (single, kept):
        for number, (num_tokens, max_tokens) in enumerate(requests):
            decoding.submit(f"r{number}", num_tokens, max_tokens=max_tokens)
    for alone, most in plays:
        assert single.one_by_one(alone) == kept.one_by_one(alone)
        single.one_by_one(kept.together(most))
        assert single.state() == kept.state()
    assert single.one_by_one(200) == kept.one_by_one(200)
    assert single.state() == kept.state()


def decoding(**params: Any) -> Decoding:
    """Two requests, of which one has these parameters, that decode."""
    found = Decoding()
    found.submit("plain", 6, max_tokens=50)
    found.submit("other", 6, **{"max_tokens": 50} | params)
    found.one_by_one(6)
    return found


def test_it_is_quiet_while_all_decode() -> None:
    found = decoding()
    before = {name: len(tokens) for name, tokens in found.tokens.items()}
    assert found.together(10) == 10
    assert {name: len(tokens) - 10 for name, tokens in found.tokens.items()} == before


@pytest.mark.parametrize("params", [{"logprobs": 1}, {"stop": ("x",)}, {"stop_token_ids": (5,)}])
def test_it_is_not_where_a_token_may_end_an_output_or_says_more(params: dict[str, Any]) -> None:
    assert decoding(**params).quiet() is None


def test_the_last_steps_of_a_request_are_not() -> None:
    found = decoding(max_tokens=20)
    left = 20 - len(found.tokens["other"])
    assert found.together(50) == left - 3, "two are in flight, and one is to be planned"


def test_nor_while_somebody_could_begin_or_waits_without_an_end() -> None:
    found = decoding()
    found.submit("new", 6, max_tokens=50)
    assert found.quiet() is None, "its prompt is in no step yet"
    found.one_by_one(4)
    assert found.quiet() is not None


def test_who_waits_for_a_place_in_the_batch_disturbs_nobody() -> None:
    found = Decoding(max_num_seqs=2)
    for name in ("a", "b", "c"):
        found.submit(name, 6, max_tokens=50)
    found.one_by_one(6)
    assert found.rm.state.sequences.num_waiting == 1 and found.together(5) == 5


def test_a_timer_that_is_due_is_not_passed() -> None:
    found = Decoding(num_blocks=1000)
    found.submit("a", 6, max_tokens=900)
    found.one_by_one(4)
    assert 10 < found.together(200) <= found.rm.state.settings.heartbeat_s / STEP_S


def test_what_is_lost_and_what_is_served_too_long_is_not_kept() -> None:
    found = decoding()
    quiet = found.quiet()
    assert quiet is not None
    lost = fw.SeqResult(request_id="plain", attempt=0, status="lost", lost=("p",))
    result = found.next_result()
    assert not quiet.takes(msgspec.structs.replace(result, results=(lost, *result.results[1:])), found.now)
    served = 0.0
    for _ in range(100):
        served += 0.9 * STEP_S
        result = msgspec.structs.replace(result, counters=Counters(step_serve_s=served))
        if not quiet.takes(result, found.now):
            break
    assert 0 < len(quiet.results) < 100, "until its share of the time is near its limit"


def test_slots_are_left_for_all_that_run() -> None:
    found = Decoding(num_blocks=8)
    found.submit("a", 6, max_tokens=26)
    found.one_by_one(4)
    free = found.rm.state.pool.num_free
    assert found.together(100) <= free * BLOCK and found.rm.state.pool.num_free >= 1


def test_heartbeats_tell_the_same() -> None:
    single, kept = decoding(), decoding()
    single.one_by_one(kept.together(20))
    beats = []
    for one in (single, kept):
        one.now += 1.0
        beats += [body for body in one.handle(c.Tick()) if isinstance(body, tg.Heartbeat)]
    assert len(beats) == 2 and beats[0] == beats[1]
