"""What a client asked for, and what it has got so far."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field

from msgspec import structs

from distkv.control.request.answer.prompt_report import PromptReport
from distkv.types import SamplingParams
from distkv.wire.messages.to_worker import Sampling

MOST_WAITED_S = 30.0
"""Of what others say that a request has waited, so much counts."""


@dataclass(slots=True)
class Request:
    """A request as a value: from it alone any instance could go on, whatever became of its memory.

    tokens: prompt and what was sampled and seen, in four bytes each, for thousands of requests may wait. arrival,
    deadline, began: on the clock of the instance that owns it; arrival is as much before it came as it has waited
    elsewhere; began is when the first step that computes anything for it was sent. bad_words: the tokens of each of
    `params.bad_words`. ends: ids of tokens that may not come among the first `params.min_tokens`. grammar_id: of what
    its output must be. can_move: whether its client sends it elsewhere when it is told to. has_history: whether
    sampling looks at the tokens before. report: of the logprobs of its prompt, if they are wanted. is_plain: its tokens
    come with nothing else, no logprobs, and no grammar can end it.
    """

    request_id: str
    route: bytes
    arrival: float
    params: SamplingParams
    seed: int
    tokens: array[int]
    prompt_tokens: int
    deadline: float | None = None
    began: float | None = None
    bad_words: Sequence[tuple[int, ...]] = ()
    ends: Sequence[int] = ()
    grammar_id: int | None = None
    can_move: bool = False
    report: PromptReport | None = field(init=False, default=None)
    has_history: bool = field(init=False)
    is_plain: bool = field(init=False)
    _sampling: Sampling = field(init=False)
    _early_sampling: Sampling = field(init=False)

    def __post_init__(self) -> None:
        params = self.params
        longer = tuple(word for word in self.bad_words if len(word) > 1)
        forbidden = {word[0] for word in self.bad_words if len(word) == 1}
        self._sampling = Sampling(
            temperature=params.temperature,
            top_k=params.top_k,
            top_p=params.top_p,
            seed=self.seed,
            min_p=params.min_p,
            repetition_penalty=params.repetition_penalty,
            presence_penalty=params.presence_penalty,
            frequency_penalty=params.frequency_penalty,
            logit_bias=params.logit_bias,
            prompt_tokens=self.prompt_tokens,
            logprobs=params.logprobs,
            allowed_token_ids=params.allowed_token_ids or (),
            forbidden_token_ids=tuple(sorted(forbidden)),
            bad_words=longer,
            grammar_id=self.grammar_id,
        )
        self._early_sampling = self._sampling
        if self.ends:
            early = tuple(sorted(forbidden.union(self.ends)))
            self._early_sampling = structs.replace(self._sampling, forbidden_token_ids=early)
        has_penalties = params.repetition_penalty != 1 or params.presence_penalty != 0 or params.frequency_penalty != 0
        self.has_history = has_penalties or bool(longer)
        self.is_plain = params.logprobs is None and params.prompt_logprobs is None and self.grammar_id is None
        if params.prompt_logprobs is not None:
            self.report = PromptReport(self.prompt_tokens, params.prompt_logprobs)

    def sampling_at(self, position: int) -> Sampling:
        """How the token at this position is chosen, whenever and however often it is computed."""
        is_early = position - self.prompt_tokens < self.params.min_tokens
        return self._early_sampling if is_early else self._sampling

    def begin(self, now: float) -> None:
        """A step computes something for it; the first one counts."""
        if self.began is None:
            self.began = now

    @property
    def age(self) -> tuple[float, str]:
        """Sorts requests oldest first; no two live ones have the same."""
        return self.arrival, self.request_id
