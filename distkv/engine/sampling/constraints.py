"""Outputs that follow a grammar: which tokens they can have next.

A mask needs the token before it, so it is made when a Step begins, in a thread beside the model that lets others run,
in a bounded time. What was sampled moves its matcher on at once; a Step of a new attempt, or of a new request of the
same name, that samples an earlier position moves it back.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from queue import SimpleQueue
from threading import Lock
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from distkv.engine.device.device import Device
from distkv.engine.sampling.mask_threads import Job, Mask, MaskThreads
from distkv.engine.step.batch import PlannedSeq
from distkv.errors import MalformedMessage
from distkv.wire.messages.counters import Counters
from distkv.wire.messages.to_worker import Sampling

if TYPE_CHECKING:
    from llguidance import LLMatcher

Words = np.ndarray[tuple[int, int], np.dtype[np.int32]]
MOST_S, TOKEN_S = 0.08, 0.02
"""What an output may take of a core to be followed, for one token and for each. Usual is a hundredth of it."""
_WORD_BITS = 32
_CANNOT_BE_FOLLOWED = "the grammar of the output cannot be followed further: "
_TAKES_LONG = (
    f"{_CANNOT_BE_FOLLOWED}its tokens take more than {TOKEN_S:g} s of a core each to be found, or one {MOST_S:g} s"
)
_NO_THREAD = f"{_CANNOT_BE_FOLLOWED}tokens of other outputs take too long to be found"


class Grammar:
    """What outputs follow. given_up: the last of its masks that nobody waited for."""

    def __init__(self, matcher: LLMatcher) -> None:
        self.matcher = matcher
        self.given_up: Job | None = None

    @property
    def is_lost(self) -> bool:
        """Whether a matcher is in use for these masks still. All share a lock, so none of them may be used."""
        return self.given_up is not None and not self.given_up.is_over


class Constraint:
    """The output of one request, and how far its matcher has followed it.

    The token behind the vocabulary, which no model has, is the end for the matcher. problem: why no token can come.
    may_come_again: that is for other outputs, and only now. left_s: of a core, what the next mask may take.
    """

    def __init__(self, grammar_id: int, grammar: Grammar, eos_token_ids: Sequence[int]) -> None:
        self.grammar_id, self.grammar = grammar_id, grammar
        self.matcher = grammar.matcher.deep_copy()
        self.problem = ""
        self.may_come_again = False
        self.left_s = MOST_S
        self._eos_token_ids = frozenset(eos_token_ids)
        self._length = 0
        self._has_end = False

    @property
    def is_complete(self) -> bool:
        """Whether nothing can follow what was sampled."""
        return self._has_end or (self._length > 0 and not self.grammar.is_lost and self.matcher.is_stopped())

    def spend(self, spent_s: float) -> None:
        """So much of a core was spent on the mask of one token."""
        self.left_s = min(MOST_S, self.left_s - spent_s + TOKEN_S)

    def rewind(self, length: int) -> None:
        """The output has so many tokens, which were sampled before. Raises MalformedMessage if they were not."""
        back = self._length - length
        if self.grammar.is_lost:
            self.problem = self.problem or _TAKES_LONG
        # A Step that was sent ahead of the end of the output is in vain, and so is what it samples.
        if back < 0 and not self.problem and not self.is_complete:
            raise MalformedMessage(f"a grammar that followed {self._length} tokens is to go on behind {length}")
        if back > 0:
            if not self.grammar.is_lost and not self.matcher.rollback(back - self._has_end):
                self.problem = self._error()
            self._length, self._has_end = length, False

    def allow(self, allowed: np.ndarray[tuple[int], np.dtype[np.bool_]], sampling: Sampling) -> None:
        """From the matcher's mask, one for each token and its end, to that of the model, in place."""
        if self.matcher.is_error():
            self.problem = self._error()
        elif allowed[-1]:
            allowed[list(self._eos_token_ids)] = True
        chosen_from = allowed[list(sampling.allowed_token_ids)] if sampling.allowed_token_ids else allowed[:-1]
        if not self.problem and not chosen_from.any():
            limits = " and allowed_token_ids leave" if sampling.allowed_token_ids else " leaves"
            self.problem = f"the grammar of the output{limits} no token of this model"

    def append(self, token: int) -> None:
        """This token was sampled. Whatever it is, the matcher does not fail of one that its mask allows."""
        if self.problem or self.is_complete:
            return
        begun_s = time.thread_time()
        if token in self._eos_token_ids and self.matcher.is_accepting():
            self._has_end = True
        elif not self.matcher.consume_token(token):
            self.problem = self._error()
        self._length += 1
        self.left_s -= time.thread_time() - begun_s

    def _error(self) -> str:
        return f"{_CANNOT_BE_FOLLOWED}{self.matcher.get_error().splitlines()[0]}"


Wanted = tuple[str, Constraint, Sampling]


class Masks:
    """Those of one Step, being made."""

    def __init__(self, vocab_size: int, wanted: Sequence[Wanted], threads: MaskThreads, counters: Counters) -> None:
        """Begin to make them. Counts mask_s."""
        self._wanted, self._threads, self._counters = wanted, threads, counters
        self._words = np.zeros((len(wanted), -(-(vocab_size + 1) // _WORD_BITS)), np.int32)
        self._done: SimpleQueue[Job] = SimpleQueue()
        masks: dict[int, list[Mask]] = {}
        self._made: dict[int, list[tuple[Constraint, Mask]]] = {}
        for words, (_, one, _) in zip(self._words, wanted, strict=True):
            if not one.problem:
                mask = Mask(one.matcher, words, one.left_s)
                masks.setdefault(one.grammar_id, []).append(mask)
                self._made.setdefault(one.grammar_id, []).append((one, mask))
        self._jobs = {grammar_id: Job(its, self._done) for grammar_id, its in masks.items()}
        self._begun_s = time.monotonic()
        if self._jobs:
            threads.put(self._jobs.values())

    @property
    def are_any(self) -> bool:
        """Whether `apply` does anything."""
        return bool(self._wanted)

    def drop(self) -> None:
        """They are not wanted any more: the next Step may move its matchers when this returns."""
        self._settle()

    def apply(self, logits: Tensor, row_of: Mapping[str, int], device: Device) -> None:
        """-inf for tokens that cannot come next, in place, in float32 [N, vocab] on the device. row_of: the row of each
        request."""
        if not self._wanted:
            return
        self._settle()
        for job in self._jobs.values():
            if job.error is not None:
                raise job.error
        vocab = logits.shape[-1]
        bits = np.unpackbits(self._words.view(np.uint8), axis=1, bitorder="little")[:, : vocab + 1].astype(np.bool_)
        for mask, (_, constraint, sampling) in zip(bits, self._wanted, strict=True):
            if not constraint.is_complete and not constraint.problem:
                constraint.allow(mask, sampling)
            if constraint.is_complete or constraint.problem:
                mask[:] = True
        found = [index for index, (name, *_) in enumerate(self._wanted) if name in row_of]
        rows = [row_of[self._wanted[index][0]] for index in found]
        barred, at = device.to_device(torch.from_numpy(~bits[found, :vocab]), torch.tensor(rows, dtype=torch.int64))
        logits.index_copy_(0, at, logits.index_select(0, at).masked_fill_(barred, -torch.inf))

    def _settle(self) -> None:
        """Each is made, or its output is not followed further."""
        self._threads.wait(self._jobs.values(), self._done)
        for grammar_id, job in self._jobs.items():
            for constraint, mask in self._made[grammar_id]:
                constraint.spend(mask.spent_s)
                if job.is_given_up:
                    constraint.grammar.given_up = job if job.began else None
                    constraint.problem = _TAKES_LONG if job.began else _NO_THREAD
                    constraint.may_come_again = not job.began
        if self._jobs:
            self._counters.mask_s += max(job.finished_s for job in self._jobs.values()) - self._begun_s


class Constraints:
    """All that a worker follows. `add` is for any thread, everything else for the thread of Steps.

    eos_token_ids: of the model, whose vocabulary has `vocab_size` tokens.
    """

    def __init__(self, vocab_size: int, eos_token_ids: Sequence[int]) -> None:
        self._vocab_size = vocab_size
        self._eos_token_ids = [one for one in eos_token_ids if one < vocab_size]
        self._lock = Lock()
        self._grammars: dict[int, Grammar] = {}
        self._of_request: dict[str, Constraint] = {}
        self._threads = MaskThreads()
        self._none = Masks(vocab_size, (), self._threads, Counters())

    def add(self, grammar_id: int, grammar: LLMatcher) -> None:
        """Steps may name this grammar, a matcher that has seen no token, from now on."""
        with self._lock:
            self._grammars[grammar_id] = Grammar(grammar)

    def forget(self, request_ids: Iterable[str], grammar_ids: Iterable[int]) -> None:
        """Drop what is kept of these."""
        for request_id in request_ids:
            self._of_request.pop(request_id, None)
        with self._lock:
            for grammar_id in grammar_ids:
                self._grammars.pop(grammar_id, None)

    def begin(self, planned: Sequence[PlannedSeq], counters: Counters) -> Masks:
        """Begin to make the masks for the tokens that the sequences sample. Counts mask_s. Raises MalformedMessage for
        a grammar that is not there."""
        wanted = [
            (one.step.request_id, self._constraint(one, one.step.sample), one.step.sample)
            for one in planned
            if one.step.sample is not None and one.step.sample.grammar_id is not None
        ]
        # Those of most steps are the same.
        return Masks(self._vocab_size, wanted, self._threads, counters) if wanted else self._none

    def sampled(self, request_id: str, token: int) -> Constraint:
        """A token was sampled for a sequence that has a grammar."""
        constraint = self._of_request[request_id]
        constraint.append(token)
        return constraint

    def _constraint(self, one: PlannedSeq, sampling: Sampling) -> Constraint:
        name, grammar_id = one.step.request_id, sampling.grammar_id
        assert grammar_id is not None
        found = self._of_request.get(name)
        if found is None or found.grammar_id != grammar_id:
            with self._lock:
                grammar = self._grammars.get(grammar_id)
            if grammar is None:
                raise MalformedMessage(f"{name}: there is no grammar {grammar_id}")
            found = self._of_request[name] = Constraint(grammar_id, grammar, self._eos_token_ids)
        found.rewind(one.step.end - sampling.prompt_tokens)
        return found
