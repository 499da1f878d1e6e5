"""Which logprobs of its prompt a client was told: each once and in order, however often the prompt is computed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from distkv.types import TokenLogprobs
from distkv.wire.messages.to_worker import PromptLogprobs


@dataclass(slots=True)
class PromptReport:
    """top: likeliest tokens wanted at each position. told: positions below this one were told."""

    prompt_tokens: int
    top: int
    told: int = 0

    def ask(self, token_ids: Sequence[int], start: int, end: int) -> PromptLogprobs | None:
        """What a step over [start, end) can tell that was not told yet: its rows predict one position further on."""
        first, last = max(start + 1, self.told), min(end + 1, self.prompt_tokens)
        if first >= last:
            return None
        return PromptLogprobs(first=first, token_ids=tuple(token_ids[first:last]), top=self.top)

    def tell(self, asked: PromptLogprobs | None, answer: Sequence[TokenLogprobs]) -> tuple[TokenLogprobs | None, ...]:
        """What of an answer is news. The first position was predicted by nothing."""
        news: list[TokenLogprobs | None] = []
        if self.told == 0:
            news.append(None)
            self.told = 1
        if asked is not None:
            assert asked.first <= self.told, f"positions [{self.told}, {asked.first}) would never be told"
            fresh = answer[self.told - asked.first :]
            news.extend(fresh)
            self.told += len(fresh)
        return tuple(news)
