"""From sampled tokens to what the client sees: text, stop strings, end tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from distkv.control.request.answer.stop_strings import StopStrings
from distkv.types import FinishReason, SamplingParams


class Decoder(Protocol):
    """Turns token ids into text piece by piece; never gives out half a character."""

    def push(self, token_ids: Sequence[int]) -> str:
        """Text that became certain with these tokens."""
        ...

    def finish(self) -> str:
        """What was held back."""
        ...


NO_TOKENS: frozenset[int] = frozenset()
MakeDecoder = Callable[[bool, Sequence[int]], Decoder]
"""The decoder of a new output; the arguments say whether special tokens are left out of the text, and which prompt it
continues."""


class NoText:
    """The decoder of a model without a tokenizer."""

    __slots__ = ()

    def __init__(self, skip_special_tokens: bool = True, after: Sequence[int] = ()) -> None:
        """There is no text either way."""

    def push(self, token_ids: Sequence[int]) -> str:
        return ""

    def finish(self) -> str:
        return ""


class OutputText:
    """Text of one request. What could still become a stop string is held back until it cannot, unless stop strings are
    part of the output. What came with the first `min_tokens` completes none. stop_reason: see TokenChunk.
    ends_at_length: nothing ends it but `max_tokens`."""

    __slots__ = (
        "_count",
        "_decoder",
        "_ends",
        "_eos_token_ids",
        "_held",
        "_own_ends",
        "_params",
        "_stops",
        "ends_at_length",
        "stop_reason",
    )

    def __init__(self, decoder: Decoder, params: SamplingParams, eos_token_ids: frozenset[int]) -> None:
        self._decoder = decoder
        self._params = params
        self._eos_token_ids = eos_token_ids
        self._own_ends = NO_TOKENS if params.ignore_eos else eos_token_ids
        self._ends = self._own_ends.union(params.stop_token_ids) if params.stop_token_ids else self._own_ends
        self.ends_at_length = not self._ends and not params.stop
        self.stop_reason: int | str | None = None
        self._stops = StopStrings(params.stop, are_part=params.include_stop_str_in_output)
        self._held = ""
        self._count = 0

    def push(self, token_id: int, is_complete: bool = False) -> tuple[str, FinishReason | None]:
        """Take one token; returns the text to send and whether the request ends with it. is_complete: nothing can
        follow it, whatever else the request says of its end."""
        params = self._params
        self._count += 1
        is_end = token_id in self._ends and self._count >= params.min_tokens
        is_end = is_end or (is_complete and token_id in self._eos_token_ids)
        text = self._decoder.push((token_id,)) if not is_end or params.include_stop_str_in_output else ""
        if is_end:
            text, is_cut = self._flush(text)
            if not is_cut and not is_complete and token_id not in self._own_ends:
                self.stop_reason = token_id
            return text, "stop"
        if text and (cut := self._hold(text)) is not None:
            return self._take(cut), "stop"
        if is_complete:
            return self._flush()[0], "stop"
        if self._count >= params.max_tokens:
            text, is_cut = self._flush()
            return text, "stop" if is_cut else "length"
        return (self._take(len(self._held) - self._stops.begun) if self._held else ""), None

    def extend(self, token_ids: Sequence[int]) -> str:
        """Take tokens of one that `ends_at_length`, not the last one; returns the text to send."""
        self._count += len(token_ids)
        return self._decoder.push(token_ids)

    def finish(self) -> str:
        """No token follows: the text that was held back."""
        return self._flush()[0]

    def _flush(self, text: str = "") -> tuple[str, bool]:
        """All text that was held back, with what came last, and whether a stop string cuts it."""
        cut = self._hold(text + self._decoder.finish())
        return self._take(len(self._held) if cut is None else cut), cut is not None

    def _hold(self, text: str) -> int | None:
        """Hold back what follows; where in all that is held back the output ends, if a stop string ends it."""
        end = self._stops.push(text, counts=self._count > self._params.min_tokens)
        held, self._held = len(self._held), self._held + text
        if end is None:
            return None
        self.stop_reason = self._stops.completed
        return held + end

    def _take(self, end: int) -> str:
        """What is held back up to `end`."""
        text, self._held = self._held[:end], self._held[end:]
        return text
