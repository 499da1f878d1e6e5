"""Words that an output must not have, as the token sequences that write them; as vLLM makes them."""

from __future__ import annotations

from collections.abc import Sequence

from distkv.errors import InvalidParams
from distkv.text.tokenizer import Tokenizer

MAX_TOKENS = 2048


def bad_word_ids(tokenizer: Tokenizer, words: Sequence[str]) -> tuple[tuple[int, ...], ...]:
    """Each word as it begins a text, and behind a space where another single beginning of as many tokens writes that.

    Raises InvalidParams for a word without tokens, and for more than MAX_TOKENS of them in all: every Step has them.
    """
    found: list[tuple[int, ...]] = []
    for word in dict.fromkeys(words):
        bare, spaced = (
            tuple(tokenizer.encode(prefix + word.lstrip(), add_special_tokens=False)) for prefix in ("", " ")
        )
        if not bare:
            raise InvalidParams("bad_words", "words that become at least one token", word)
        found.append(bare)
        if spaced and spaced[0] != bare[0] and len(spaced) == len(bare):
            found.append(spaced)
    if (num_tokens := sum(map(len, found))) > MAX_TOKENS:
        raise InvalidParams("bad_words", f"words of at most {MAX_TOKENS} tokens in all", f"{num_tokens} tokens")
    return tuple(found)
