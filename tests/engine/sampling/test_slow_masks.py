"""Masks that take long: whom they end, who waits for them, and for how long."""

from __future__ import annotations

import hashlib
import threading
from typing import Any

import pytest
import torch

from distkv.engine.sampling.constraints import MOST_S, TOKEN_S, Constraint, Grammar, Masks
from distkv.engine.sampling.mask_threads import MOST_LOST, MaskThreads
from distkv.structured_output import StructuredOutput
from distkv.text.structured_output import Vocabulary
from distkv.wire.messages.counters import Counters
from distkv.wire.messages.from_worker import SeqResult
from tests.engine.harness import Engine, seq_step
from tests.engine.sampling.following import OUTPUTS, PROMPT, VOCAB, Following, add, sampling

pytest.importorskip("llguidance", reason="llguidance is not installed in this environment: pip install -e .")

AMBIGUOUS = StructuredOutput.grammar("start: s\ns: " + " | ".join("s " * count for count in range(2, 90)) + " | /./")
"""Few items, each of which is found in very many ways."""


def test_a_mask_that_takes_long_ends_the_request_alone(engine: Engine, vocabulary: Vocabulary) -> None:
    add(engine, vocabulary, OUTPUTS["regex"])
    add(engine, vocabulary, AMBIGUOUS, 2)
    runs = [Following(engine, sampling(), "one"), Following(engine, sampling(2), "slow"), Following(engine, sampling())]
    ended: SeqResult | None = None
    for count in range(8):
        parts = [
            seq_step(PROMPT, end - 1 if count else 0, end, run.table, name=run.name, sample=run.sampling)
            for run in runs
            if (end := len(PROMPT) + count)
        ]
        results = engine.run(*parts)
        for run, result in zip(runs, results, strict=True):
            assert result.token is not None
            run.tokens.append(result.token)
        ended = results[1]
        assert not results[0].problem and not results[2].problem
    assert ended is not None and not ended.complete
    assert "take more than 0.02 s of a core each to be found, or one 0.08 s" in ended.problem
    assert not ended.may_come_again
    sibling = Following(engine, sampling(2), "of the same grammar").step()
    assert sibling.problem == ended.problem
    engine.runner.forget(["slow"], [2])
    alone = Following(engine, sampling(), "alone").finish()[:8]
    assert runs[0].tokens == runs[2].tokens == alone


def test_an_output_for_which_others_leave_no_thread_may_come_again(engine: Engine, vocabulary: Vocabulary) -> None:
    """With 32 slow outputs of one client, those of all others were refused for good."""
    add(engine, vocabulary, OUTPUTS["regex"])
    threads = engine.runner.constraints._threads
    threads._lost = MOST_LOST
    ended = Following(engine, sampling()).step()
    assert "tokens of other outputs take too long" in ended.problem and ended.may_come_again and not ended.is_fault
    threads._lost = 0
    again = Following(engine, sampling(), "again").step()
    assert not again.problem and not again.may_come_again


def test_tokens_that_each_take_some_time_end_the_request_in_the_end(engine: Engine, vocabulary: Vocabulary) -> None:
    add(engine, vocabulary, OUTPUTS["regex"])
    constraint = Following(engine, sampling())
    constraint.step()
    followed = engine.runner.constraints._of_request["r"]
    for _ in range(20):
        followed.spend(TOKEN_S)
    assert followed.left_s > TOKEN_S
    for _ in range(3):
        followed.spend(2 * TOKEN_S)
    assert followed.left_s < 2 * TOKEN_S
    for _ in range(20):
        followed.spend(0.0)
    assert followed.left_s == MOST_S


class Waiting:
    """Stands for a matcher whose mask is made when `may_end` is set."""

    def __init__(self) -> None:
        self.may_end = threading.Event()

    def deep_copy(self) -> Waiting:
        return self

    def unsafe_compute_mask_ptr(self, address: int, size: int) -> None:
        self.may_end.wait()
        raise ValueError("nobody asks for them")


class Computing(Waiting):
    """Uses a core meanwhile."""

    def unsafe_compute_mask_ptr(self, address: int, size: int) -> None:
        while not self.may_end.is_set():
            hashlib.sha256(bytes(1 << 18))  # which lets other threads run


def test_a_grammar_is_followed_again_when_its_slow_mask_has_come_to_an_end() -> None:
    """While many requests have it, it is not compiled again: all that came were refused."""
    matcher: Any = Computing()
    grammar = Grammar(matcher)
    slow, during, after = (Constraint(1, grammar, ()) for _ in range(3))
    masks = Masks(VOCAB, [("r", slow, sampling())], MaskThreads(), Counters())
    masks.drop()
    during.rewind(0)
    assert slow.problem and during.problem == slow.problem
    matcher.may_end.set()
    assert masks._done.get(timeout=30).is_over
    after.rewind(0)
    assert not after.problem


def test_a_step_of_which_nothing_is_left_waits_for_its_masks(engine: Engine) -> None:
    """The next one may move the matchers from which a thread makes them."""
    matcher: Any = Waiting()
    masks = Masks(VOCAB, [("r", Constraint(1, Grammar(matcher), ()), sampling())], MaskThreads(), Counters())
    ended = threading.Event()

    def begin() -> None:
        assert engine.runner._sample.begin((), (), masks, Counters()) is None
        ended.set()

    thread = threading.Thread(target=begin)
    thread.start()
    assert not ended.wait(0.05)
    matcher.may_end.set()
    thread.join()
    assert ended.is_set()


def test_an_error_of_a_mask_that_is_wanted_is_raised(engine: Engine) -> None:
    matcher: Any = Waiting()
    matcher.may_end.set()
    masks = Masks(VOCAB, [("r", Constraint(1, Grammar(matcher), ()), sampling())], MaskThreads(), Counters())
    with pytest.raises(ValueError, match="nobody asks"):
        masks.apply(torch.zeros(1, VOCAB), {"r": 0}, engine.model.device)
