"""Which logprobs of its prompt a client has got: each once and in order, however often the prompt is computed."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass

from distkv.token_ids import pack
from distkv.types import TokenLogprobs
from distkv.wire.messages.to_worker import PromptLogprobs


@dataclass(slots=True)
class PromptReport:
    """top: how many most likely tokens are wanted at each position. reported: positions below this one were."""

    prompt_tokens: int
    top: int
    reported: int = 0

    def limit(self, start: int, most: int) -> int:
        """Where a step from `start` on must end to report at most so many logprobs."""
        return max(start, self.reported - 1) + most // (1 + self.top)

    def request(self, token_ids: array[int], start: int, end: int) -> PromptLogprobs | None:
        """What a step over [start, end) can report that is new: its rows predict one position further on."""
        first, last = max(start + 1, self.reported), min(end + 1, self.prompt_tokens)
        if first >= last:
            return None
        return PromptLogprobs(first=first, token_ids=pack(token_ids[first:last]), top=self.top)

    def take(self, wanted: PromptLogprobs | None, answer: Sequence[TokenLogprobs]) -> tuple[TokenLogprobs | None, ...]:
        """What of an answer is news. The first position was predicted by nothing."""
        news: list[TokenLogprobs | None] = []
        if self.reported == 0:
            news.append(None)
            self.reported = 1
        if wanted is not None:
            assert wanted.first <= self.reported, f"positions [{self.reported}, {wanted.first}) would never be reported"
            fresh = answer[self.reported - wanted.first :]
            news.extend(fresh)
            self.reported += len(fresh)
        return tuple(news)
