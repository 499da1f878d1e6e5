"""Where the texts of tokens begin in a text that grows by them."""

from __future__ import annotations

import codecs
from collections.abc import Sequence

from distkv.text.tokenizer import Tokenizer


class TextOffsets:
    """Of one text, whose tokens come in order. place: where it ends now, in characters; one that is not complete counts
    from its first byte on.

    skips_special: whether the text is without special tokens. begin_text: whether nothing comes before, where
    SentencePiece drops a space. Bytes that are no UTF-8 are U+FFFD as in the text: each as soon as it is known to be
    wrong, or, with byte fallback, all of a run of bytes, whose own tokens may be known too late.
    """

    def __init__(
        self, tokenizer: Tokenizer | None, place: int = 0, *, skips_special: bool = True, begin_text: bool
    ) -> None:
        self.place = place
        self._tokenizer, self._skips_special, self._begins = tokenizer, skips_special, begin_text
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")
        self._is_within = False
        self._run = bytearray()
        self._run_began = 0

    def starts(self, token_ids: Sequence[int], text: str = "") -> list[int]:
        """Where the next tokens begin. text: all of it where that is known; a user's has special tokens by their names,
        unless the tokenizer added them."""
        if self._tokenizer is None:
            return [self.place] * len(token_ids)
        return [self._take(self._tokenizer, token_id, text) for token_id in token_ids]

    def _take(self, tokenizer: Tokenizer, token_id: int, text: str) -> int:
        """Where it begins."""
        begin = self.place
        if self._skips_special and tokenizer.is_special(token_id):
            name = tokenizer.token(token_id)
            self.place += len(name) if text.startswith(name, begin) else 0
            return begin
        raw = tokenizer.token_bytes(token_id)
        if tokenizer.is_byte(token_id):
            self._run_began = self._run_began if self._run else begin
            self._run += raw
        elif self._run:
            begin = self._end_run()
        width = self._width(raw)
        if width and self._begins:
            self._begins = False
            width = min(width, len(tokenizer.decode([token_id], skip_special_tokens=False)))
        self.place = begin + width
        return begin

    def _width(self, raw: bytes) -> int:
        """How many characters begin in these bytes."""
        was_within = self._is_within
        complete = len(self._utf8.decode(raw))
        self._is_within = bool(self._utf8.getstate()[0])
        return complete + self._is_within - was_within

    def _end_run(self) -> int:
        """Where it ends: with byte fallback all of it is UTF-8, or every byte is U+FFFD."""
        try:
            width = len(self._run.decode())
        except UnicodeDecodeError:
            width = len(self._run)
        self._run.clear()
        self._utf8.reset()
        self._is_within = False
        return self._run_began + width
