"""What a client asked for, and what it has got so far."""

from __future__ import annotations

from dataclasses import dataclass, field

from distkv.control.request.prompt_report import PromptReport
from distkv.types import SamplingParams
from distkv.wire.messages.to_worker import Sampling


@dataclass(slots=True)
class Request:
    """A request as a value: from it alone any instance could go on, whatever became of its memory.

    tokens: prompt and what was sampled and seen. arrival, deadline, began: on the clock of the instance that owns it;
    began is when the first step that computes anything for it was sent. sampling: what its steps say of how to sample;
    has_history: whether that looks at the tokens before. report: of the logprobs of its prompt, if they are wanted.
    """

    request_id: str
    route: bytes
    arrival: float
    params: SamplingParams
    seed: int
    tokens: list[int]
    prompt_tokens: int
    deadline: float | None = None
    began: float | None = None
    report: PromptReport | None = field(init=False, default=None)
    sampling: Sampling = field(init=False)
    has_history: bool = field(init=False)

    def __post_init__(self) -> None:
        params = self.params
        self.sampling = Sampling(
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
        )
        self.has_history = (
            params.repetition_penalty != 1 or params.presence_penalty != 0 or params.frequency_penalty != 0
        )
        if params.prompt_logprobs is not None:
            self.report = PromptReport(self.prompt_tokens, params.prompt_logprobs)

    def begin(self, now: float) -> None:
        """A step computes something for it; the first one counts."""
        if self.began is None:
            self.began = now

    @property
    def age(self) -> tuple[float, str]:
        """Sorts requests oldest first; no two live ones have the same."""
        return self.arrival, self.request_id
