"""Incremental detokenizing: the text of an output that grows token by token, as far as it is certain.

Text that was returned never changes, and all of it joined is `decode` of all ids. So a token is held back as long as
later ones could change its text, which only bytes of unfinished characters can.

`tokenizers.decoders.DecodeStream` does this right, and is used, where no token stands for bytes (`LibraryStream`).
Models emit bytes that are no UTF-8, and then it fails, so two kinds of tokenizers have streams of their own (the tests
show each case with tokenizers 0.23):

- byte-level BPE (`ByteStream`): it returns nothing more once invalid bytes come one after the other, decodes all it
  holds again at every token (8,000 tokens took it 10 s), and has no end, so that what it holds is lost;
- byte fallback (`WindowStream`): it returns a character, then finds that the run of bytes goes on and is no UTF-8 as a
  whole; what it returned was wrong, and it raises or repeats. A vocabulary with U+FFFD has the first problem too.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Callable, Sequence
from functools import cache
from typing import Protocol

import tokenizers
from tokenizers.decoders import DecodeStream

BYTE_TOKEN = re.compile(r"<0x[0-9A-Fa-f]{2}>")
_MAX_HELD = 8


class TextStream(Protocol):
    """Decodes ids one by one; those to be left out are left out before."""

    def follow(self, token_id: int) -> bool:
        """Begin behind this token of another text; False if it says nothing of what comes behind it. For who has pushed
        nothing."""

    def push(self, token_id: int) -> str:
        """The text that is certain now."""

    def finish(self) -> str:
        """The text that was held back."""


class IncrementalDecoder:
    """The text of one growing output, `special_ids` left out. Not thread-safe. Work per token does not grow with the
    output."""

    def __init__(self, special_ids: frozenset[int], stream: TextStream) -> None:
        self._special_ids, self._stream = special_ids, stream

    def push(self, token_ids: Sequence[int]) -> str:
        """Take the next ids; returns the new text, which may be empty."""
        return "".join(self._stream.push(index) for index in token_ids if index not in self._special_ids)

    def finish(self) -> str:
        """No more ids: returns what was held back, U+FFFD in place of an unfinished character."""
        return self._stream.finish()


class LibraryStream:
    """For tokenizers none of whose tokens stands for bytes or for U+FFFD: the library's own stream holds nothing back
    there, so nothing is left at the end."""

    def __init__(self, backend: tokenizers.Tokenizer) -> None:
        self._backend = backend
        self._stream = DecodeStream(skip_special_tokens=False)

    def follow(self, token_id: int) -> bool:
        """See TextStream."""
        if is_known := self._backend.id_to_token(token_id) is not None:
            self._stream.step(self._backend, token_id)
        return is_known

    def push(self, token_id: int) -> str:
        """See TextStream."""
        # The library would keep ids that it does not know, and look at all of them at every token.
        if self._backend.id_to_token(token_id) is None:
            return ""
        return self._stream.step(self._backend, token_id) or ""

    def finish(self) -> str:
        """See TextStream."""
        return ""


class ByteStream:
    """For byte-level BPE: every token stands for bytes, which go through the UTF-8 decoder of the standard library.

    It holds at most three bytes back; an invalid byte becomes U+FFFD as soon as it comes.
    """

    def __init__(self, token_of: Callable[[int], str | None]) -> None:
        self._token_of = token_of
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")

    def follow(self, token_id: int) -> bool:
        """See TextStream; a token is the same bytes anywhere."""
        return True

    def push(self, token_id: int) -> str:
        """See TextStream."""
        token = self._token_of(token_id)
        return "" if token is None else self._utf8.decode(token_bytes(token))

    def finish(self) -> str:
        """See TextStream."""
        return self._utf8.decode(b"", final=True)


def token_bytes(token: str) -> bytes:
    """What a token of a byte-level tokenizer stands for."""
    alphabet = byte_alphabet()
    try:
        return bytes(alphabet[character] for character in token)
    except KeyError:  # an added token, written as plain text
        return token.encode()


@cache
def byte_alphabet() -> dict[str, int]:
    """Which byte each character of a byte-level token stands for: printable ones for themselves, others from U+0100
    on in order (GPT-2)."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + index): byte for index, byte in enumerate(hidden)}


class WindowStream:
    """For all other tokenizers: decodes the newest tokens together with the one before them, which shows whether a
    leading space belongs to the text.

    With byte fallback, `decode` takes bytes as one run: all of it is UTF-8, or every byte is U+FFFD. So a run is held
    until it ends. Elsewhere text that ends in U+FFFD may be unfinished, and is held for at most _MAX_HELD tokens.
    """

    def __init__(
        self, decode: Callable[[Sequence[int]], str], token_of: Callable[[int], str | None], byte_fallback: bool
    ) -> None:
        self._decode, self._token_of, self._byte_fallback = decode, token_of, byte_fallback
        self._before: list[int] = []
        self._held: list[int] = []

    def follow(self, token_id: int) -> bool:
        """See TextStream. A byte would be a part of the run of bytes behind it."""
        token = self._token_of(token_id)
        if token is None or (self._byte_fallback and BYTE_TOKEN.fullmatch(token)):
            return False
        if self._decode([token_id]).endswith("\ufffd"):
            return False
        self._before = [token_id]
        return True

    def push(self, token_id: int) -> str:
        """See TextStream."""
        token = self._token_of(token_id)
        if token is None:
            return ""
        self._held.append(token_id)
        if self._byte_fallback:
            return "" if BYTE_TOKEN.fullmatch(token) else self._release(self._text())
        text = self._text()
        return "" if text.endswith("\ufffd") and len(self._held) < _MAX_HELD else self._release(text)

    def finish(self) -> str:
        """See TextStream."""
        return self._release(self._text()) if self._held else ""

    def _release(self, text: str) -> str:
        self._before, self._held = self._held[-1:], []
        return text

    def _text(self) -> str:
        context = self._decode(self._before) if self._before else ""
        return self._decode([*self._before, *self._held])[len(context) :]
