"""What is measured: a prompt or several, and the rate that counts."""

from __future__ import annotations

import random
from typing import Literal

import msgspec


class Answer(msgspec.Struct, frozen=True):
    """Tokens of every prompt, and when each came: seconds after the request."""

    token_ids: list[list[int]]
    times_s: list[list[float]]

    @property
    def first_s(self) -> float:
        """When every prompt had its first token."""
        return max(times[0] for times in self.times_s)

    def decode_tokens_per_s(self) -> float:
        """Tokens of all prompts per second while all of them decode: from the last first token to the first last one.

        Raises ValueError when there is no such time.
        """
        start, end = self.first_s, min(times[-1] for times in self.times_s)
        if end <= start:
            raise ValueError("one prompt had all its tokens before another had its first: ask for more tokens")
        return sum(start < time <= end for times in self.times_s for time in times) / (end - start)


class Case(msgspec.Struct, frozen=True):
    """`batch` prompts of `prompt_tokens` each and `max_tokens` greedy tokens after them.

    goal: the least ratio to the best baseline, by model.
    """

    kind: Literal["decode", "batch", "prefill"]
    prompt_tokens: int
    max_tokens: int
    batch: int = 1
    goal: dict[str, float] = {}

    @property
    def name(self) -> str:
        match self.kind:
            case "decode":
                return f"decode at {self.prompt_tokens:,}"
            case "batch":
                return f"decode of {self.batch} x {self.prompt_tokens:,}"
            case "prefill":
                return f"prefill of {self.prompt_tokens:,}"

    @property
    def kv_tokens(self) -> int:
        """KV that it needs at most, with room for what is asked beside it."""
        return self.batch * (self.prompt_tokens + max(self.max_tokens, 256))

    @property
    def mean_context(self) -> float:
        """Tokens that a sequence attends to in a step measured, on average."""
        return self.prompt_tokens + (self.max_tokens + 1) / 2

    def prompts(self, vocab: int, seed: int) -> list[list[int]]:
        """Random ids; another seed gives others from the first token on, so that no engine knows their beginning."""
        draw = random.Random(f"{self.name} {seed}")
        return [[draw.randrange(1, vocab) for _ in range(self.prompt_tokens)] for _ in range(self.batch)]

    def rate(self, answer: Answer) -> float:
        """Tokens per second: of the prompt until its first token, else of pure decode steps."""
        if self.kind == "prefill":
            return self.prompt_tokens * self.batch / answer.first_s
        return answer.decode_tokens_per_s()


FULL = (
    Case("prefill", 2048, 1, goal={"b": 1.0, "c": 1.0}),
    Case("decode", 128, 64, goal={"b": 1.0, "c": 1.0}),
    Case("decode", 2048, 48, goal={"b": 1.0, "c": 1.0}),
    Case("batch", 512, 64, batch=8, goal={"b": 1.2, "c": 1.0}),
    Case("decode", 8192, 32, goal={"b": 1.8, "c": 1.0}),
    Case("prefill", 16384, 1, goal={"b": 1.0, "c": 1.0}),
    Case("decode", 32768, 24, goal={"b": 2.0, "c": 1.0}),
)
QUICK = (Case("prefill", 256, 1), Case("decode", 128, 512), Case("batch", 64, 512, batch=2))
