"""From sampled tokens to what the client sees: text, stop strings, end tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from distkv.types import FinishReason, SamplingParams


class Decoder(Protocol):
    """Turns token ids into text piece by piece; never gives out half a character."""

    def push(self, token_ids: Sequence[int]) -> str:
        """Text that became certain with these tokens."""
        ...

    def finish(self) -> str:
        """What was held back."""
        ...


class NoText:
    """The decoder of a model without a tokenizer."""

    def push(self, token_ids: Sequence[int]) -> str:
        return ""

    def finish(self) -> str:
        return ""


class OutputText:
    """Text of one request. What could still become a stop string is held back until it cannot."""

    def __init__(self, decoder: Decoder, params: SamplingParams, eos_token_ids: frozenset[int]) -> None:
        self._decoder = decoder
        self._params = params
        self._ends = frozenset(params.stop_token_ids) | (frozenset() if params.ignore_eos else eos_token_ids)
        self._held = ""
        self._count = 0

    def push(self, token_id: int) -> tuple[str, FinishReason | None]:
        """Take one token; returns the text to send and whether the request ends with it."""
        self._count += 1
        if token_id in self._ends:
            return self._flush()[0], "stop"
        self._held += self._decoder.push((token_id,))
        cut = self._find_stop()
        if cut is not None:
            text, self._held = self._held[:cut], ""
            return text, "stop"
        if self._count >= self._params.max_tokens:
            text, is_cut = self._flush()
            return text, "stop" if is_cut else "length"
        keep = self._longest_stop_prefix()
        text, self._held = self._held[: len(self._held) - keep], self._held[len(self._held) - keep :]
        return text, None

    def finish(self) -> str:
        """No token follows: the text that was held back."""
        return self._flush()[0]

    def _flush(self) -> tuple[str, bool]:
        """All text that was held back, and whether a stop string cuts it."""
        self._held += self._decoder.finish()
        cut = self._find_stop()
        text, self._held = self._held[:cut], ""
        return text, cut is not None

    def _find_stop(self) -> int | None:
        found = [at for s in self._params.stop if (at := self._held.find(s)) >= 0]
        return min(found, default=None)

    def _longest_stop_prefix(self) -> int:
        """How many trailing characters of the held text begin some stop string."""
        longest = 0
        for stop in self._params.stop:
            for length in range(min(len(stop) - 1, len(self._held)), longest, -1):
                if self._held.endswith(stop[:length]):
                    longest = length
                    break
        return longest
