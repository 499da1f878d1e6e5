"""From sampled tokens to what the client sees: text, stop strings, end tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
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


MakeDecoder = Callable[[bool], Decoder]
"""The decoder of a new output; the argument says whether special tokens are left out of the text."""


class NoText:
    """The decoder of a model without a tokenizer."""

    def __init__(self, skip_special_tokens: bool = True) -> None:
        """There is no text either way."""

    def push(self, token_ids: Sequence[int]) -> str:
        return ""

    def finish(self) -> str:
        return ""


class OutputText:
    """Text of one request. What could still become a stop string is held back until it cannot, unless stop strings are
    part of the output: then it is only remembered.

    _tail: the end of the text, as far as stop strings to come may begin in it. _sent: how many characters of it were
    sent. _free: within so many of them no stop string counts, for they came with the first `min_tokens`.
    """

    def __init__(self, decoder: Decoder, params: SamplingParams, eos_token_ids: frozenset[int]) -> None:
        self._decoder = decoder
        self._params = params
        self._ends = frozenset(params.stop_token_ids) | (frozenset() if params.ignore_eos else eos_token_ids)
        self._tail = ""
        self._sent = 0
        self._free = 0
        self._count = 0

    def push(self, token_id: int) -> tuple[str, FinishReason | None]:
        """Take one token; returns the text to send and whether the request ends with it."""
        params = self._params
        self._count += 1
        is_end = token_id in self._ends and self._count >= params.min_tokens
        if not is_end or params.include_stop_str_in_output:
            self._tail += self._decoder.push((token_id,))
        if is_end:
            return self._flush()[0], "stop"
        if (cut := self._find_stop()) is not None:
            return self._take(cut), "stop"
        if self._count >= params.max_tokens:
            text, is_cut = self._flush()
            return text, "stop" if is_cut else "length"
        kept = self._longest_stop_prefix()
        text = self._take(len(self._tail) - (0 if params.include_stop_str_in_output else kept))
        self._forget(len(self._tail) - kept)
        return text, None

    def finish(self) -> str:
        """No token follows: the text that was held back."""
        return self._flush()[0]

    def _flush(self) -> tuple[str, bool]:
        """All text that was held back, and whether a stop string cuts it."""
        self._tail += self._decoder.finish()
        cut = self._find_stop()
        return self._take(len(self._tail) if cut is None else cut), cut is not None

    def _take(self, end: int) -> str:
        """What was not sent yet of the tail up to `end`."""
        start, self._sent = self._sent, end
        return self._tail[start:end]

    def _forget(self, count: int) -> None:
        """The tail needs its first characters no more."""
        self._tail = self._tail[count:]
        self._sent -= count
        self._free = max(0, self._free - count)

    def _find_stop(self) -> int | None:
        """Where the output ends, if a stop string ends it: before the first of them, or after the first one complete if
        they are part of it."""
        if self._count <= self._params.min_tokens:
            self._free = len(self._tail)
        is_part = self._params.include_stop_str_in_output
        found = [
            at + (len(stop) if is_part else 0)
            for stop in self._params.stop
            if (at := self._tail.find(stop, max(0, self._free - len(stop) + 1))) >= 0
        ]
        return min(found, default=None)

    def _longest_stop_prefix(self) -> int:
        """How many trailing characters of the text begin some stop string."""
        longest = 0
        for stop in self._params.stop:
            for length in range(min(len(stop) - 1, len(self._tail)), longest, -1):
                if self._tail.endswith(stop[:length]):
                    longest = length
                    break
        return longest
