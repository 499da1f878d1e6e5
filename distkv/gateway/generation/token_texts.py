"""Tokens and their logarithms of probability, as the API writes them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from distkv.gateway.generation.text_offsets import TextOffsets
from distkv.gateway.schema.requests import SamplingRequest
from distkv.gateway.schema.responses import (
    CompletionLogprobs,
    PromptLogprob,
    PromptLogprobs,
    TokenLogprob,
    TopLogprob,
)
from distkv.text.tokenizer import Tokenizer
from distkv.types import TokenLogprobs

# JSON has no -inf.
LEAST = -9999.0


def with_most(found: Iterable[TokenLogprobs | None], most: int) -> list[TokenLogprobs | None]:
    """The same with at most so many likely tokens each."""
    return [
        one and (one if len(one.top) <= most else msgspec.structs.replace(one, top=one.top[:most])) for one in found
    ]


def token_texts(tokenizer: Tokenizer | None, body: SamplingRequest) -> TokenTexts:
    """As a request wants them."""
    return TokenTexts(
        tokenizer,
        as_ids=bool(body.return_tokens_as_token_ids),
        skip_special_tokens=body.skip_special_tokens is not False,
    )


class TokenTexts:
    """Writes single tokens: as their text, or as "token_id:7" for a request that wants ids, and without a tokenizer.

    skip_special_tokens: whether the output's text is without them.
    """

    def __init__(self, tokenizer: Tokenizer | None, *, as_ids: bool = False, skip_special_tokens: bool = True) -> None:
        self._tokenizer = tokenizer
        self._skips_special = skip_special_tokens
        self._as_ids = as_ids or tokenizer is None

    def of(self, token_id: int) -> tuple[str, bytes]:
        """The text of a token, and its UTF-8. Where that is part of a character, the text is `bytes:\\xe2\\x82`."""
        if self._as_ids or self._tokenizer is None:
            text = f"token_id:{token_id}"
            return text, text.encode()
        raw = self._tokenizer.token_bytes(token_id)
        try:
            return raw.decode(), raw
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw), raw

    def is_shown(self, token_id: int) -> bool:
        """Whether the text of an output has something of this token."""
        if self._tokenizer is None or (self._skips_special and self._tokenizer.is_special(token_id)):
            return False
        return bool(self._tokenizer.token_bytes(token_id))

    def offsets(self, place: int = 0, *, begin_text: bool) -> TextOffsets:
        """Of the texts of tokens, from `place` on. begin_text: whether nothing comes before."""
        return TextOffsets(self._tokenizer, place, skips_special=self._skips_special, begin_text=begin_text)

    def completion(
        self, token_ids: Sequence[int], found: Sequence[TokenLogprobs | None], starts: Sequence[int]
    ) -> CompletionLogprobs:
        """Of a completion; `starts` is where the text of each token begins. The chosen token is always among the
        likely ones. None is for a token that nothing comes before."""
        return CompletionLogprobs(
            tokens=[self.of(token_id)[0] for token_id in token_ids],
            token_logprobs=[None if one is None else max(one.logprob, LEAST) for one in found],
            top_logprobs=[None if one is None else self._top(one) for one in found],
            text_offset=list(starts),
        )

    def _top(self, one: TokenLogprobs) -> dict[str, float]:
        top: dict[str, float] = {}
        for token_id, logprob in (*one.top, (one.token_id, one.logprob)):
            top.setdefault(self.of(token_id)[0], max(logprob, LEAST))
        return top

    def chat(self, found: Iterable[TokenLogprobs]) -> list[TokenLogprob]:
        """Of an answer in a chat."""
        return [
            TokenLogprob(
                *self._chat_token(one.token_id, one.logprob),
                top_logprobs=[TopLogprob(*self._chat_token(*likely)) for likely in one.top],
            )
            for one in found
        ]

    def _chat_token(self, token_id: int, logprob: float) -> tuple[str, float, list[int]]:
        text, raw = self.of(token_id)
        return text, max(logprob, LEAST), list(raw)

    def prompt(self, found: Iterable[TokenLogprobs | None]) -> PromptLogprobs:
        """vLLM's prompt_logprobs: per token of the prompt, the candidates by id, the token itself among them."""
        return [None if one is None else self._candidates(one) for one in found]

    def _candidates(self, one: TokenLogprobs) -> dict[str, PromptLogprob]:
        ranked = {one.token_id: (one.logprob, one.rank)}
        ranked |= {likely: (logprob, rank) for rank, (likely, logprob) in enumerate(one.top, 1)}
        return {
            str(token_id): PromptLogprob(max(logprob, LEAST), rank, self.of(token_id)[0])
            for token_id, (logprob, rank) in ranked.items()
        }
