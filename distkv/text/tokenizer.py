"""Text to token ids and back, by the tokenizer files of a Hugging Face directory. Loads no torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from operator import itemgetter
from pathlib import Path
from typing import Any, Literal

import msgspec
import tokenizers
import xxhash

from distkv.errors import CheckpointError
from distkv.git_lfs import refuse_pointer
from distkv.text.detokenizer import (
    BYTE_TOKEN,
    ByteStream,
    IncrementalDecoder,
    LibraryStream,
    TextStream,
    WindowStream,
    token_bytes,
)
from distkv.text.token_sizes import most_bytes_per_token

_OTHER_FORMATS = ("tokenizer.model", "spiece.model", "tekken.json", "vocab.json", "vocab.txt")
Side = Literal["left", "right"]
_JOINS = {"Replace", "ByteFallback", "Fuse", "Strip", "Metaspace"}
"""What decoders of SentencePiece vocabularies consist of."""
_FEW = 1000
"""So few ids are decoded in a third of a millisecond."""


class TextTooLong(Exception):
    """A text has more tokens than its reader takes: `num_tokens` if `is_exact`, else at least so many."""

    def __init__(self, num_tokens: int, *, is_exact: bool) -> None:
        super().__init__(num_tokens)
        self.num_tokens, self.is_exact = num_tokens, is_exact


def truncated(ids: list[int], most: int, side: Side) -> list[int]:
    """At most so many of these ids, without those on this side."""
    return ids[max(0, len(ids) - most) :] if side == "left" else ids[:most]


class Tokenizer:
    """One model's tokenizer. Safe to use from several threads; `encode` and `decode` let others run meanwhile."""

    def __init__(self, backend: tokenizers.Tokenizer) -> None:
        backend.no_truncation()
        backend.no_padding()
        self._backend = backend
        added = backend.get_added_tokens_decoder()
        self._special_ids = frozenset(index for index, token in added.items() if token.special)
        parts = msgspec.json.decode(backend.to_str())
        vocab = backend.get_vocab()
        self._decoder_kinds = _decoder_kinds(parts)
        self._most_bytes = most_bytes_per_token(parts, vocab)
        self._has_bytes = bool({"ByteLevel", "ByteFallback"} & set(self._decoder_kinds)) or any(
            "\ufffd" in token for token in vocab
        )

    @classmethod
    def from_dir(cls, model_dir: str | Path, convert: Callable[[Path], str] | None = None) -> Tokenizer | None:
        """The tokenizer of a model directory; None if it has none, so that only token ids can be prompts.

        convert: makes the text of a tokenizer.json from a directory with an older format. Raises CheckpointError when
        it is needed and not given, or a file is broken.
        """
        path = Path(model_dir)
        file = path / "tokenizer.json"
        if not file.exists():
            other = next((name for name in _OTHER_FORMATS if (path / name).exists()), None)
            if other is None:
                return None
            if convert is None:
                raise CheckpointError(str(path), f"has {other} but no tokenizer.json; convert it with transformers")
            return cls(_backend(convert(path), path / other))
        try:
            refuse_pointer(file)
            text = file.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise CheckpointError(str(file), f"cannot be read: {error}") from error
        return cls(_backend(text, file))

    def encode(self, text: str, *, add_special_tokens: bool = True, most: int | None = None) -> list[int]:
        """Token ids of a text, with the special tokens that the model puts around one.

        most: raise TextTooLong for more ids than that; where the size of the text alone tells, nothing is tokenized.
        """
        if most is not None and self.fewest_tokens(text) > most:
            raise TextTooLong(self.fewest_tokens(text), is_exact=False)
        # Of the library's ways to encode, this one lets other threads run, and leaves out offsets.
        (encoding,) = self._backend.encode_batch_fast([text], add_special_tokens=add_special_tokens)
        if most is not None and len(encoding) > most:
            raise TextTooLong(len(encoding), is_exact=True)
        return list(encoding.ids)

    def encode_truncated(self, text: str, most: int, side: Side, *, add_special_tokens: bool = True) -> list[int]:
        """At most so many ids of a text; what is cut off, on this side, is text before special tokens."""
        (encoding,) = self._backend.encode_batch_fast([text], add_special_tokens=False)
        around = self._backend.num_special_tokens_to_add(False) if add_special_tokens else 0
        encoding.truncate(max(0, most - around), direction=side)
        return truncated(self._backend.post_process(encoding, None, add_special_tokens).ids, most, side)

    def fewest_tokens(self, text: str) -> int:
        """The text has at least so many tokens; 0 where the tokenizer may leave any amount of text out."""
        # A character has at least one byte.
        return -(-len(text) // self._most_bytes) if self._most_bytes else 0

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """The text of token ids, special tokens left out. Bytes that are no UTF-8 become U+FFFD."""
        if len(ids) <= _FEW:
            return str(self._backend.decode(list(ids), skip_special_tokens=skip_special_tokens))
        # This one lets other threads run.
        (text,) = self._backend.decode_batch([list(ids)], skip_special_tokens=skip_special_tokens)
        return str(text)

    @property
    def vocabulary(self) -> str:
        """Hex hash of all tokens and their ids: whose differ are of different models."""
        tokens = sorted(self._backend.get_vocab().items(), key=itemgetter(1, 0))
        return xxhash.xxh3_64_hexdigest(msgspec.msgpack.encode(tokens))

    def token(self, token_id: int) -> str:
        """How the tokenizer writes one token; "" for an id it does not have."""
        return self._backend.id_to_token(token_id) or ""

    @property
    def is_literal(self) -> bool:
        """Whether a text is that of its tokens, each by itself (`token_bytes`), but for a space at its beginning."""
        kinds = self._decoder_kinds
        return kinds == ["ByteLevel"] or (bool(kinds) and _JOINS.issuperset(kinds))

    def is_special(self, token_id: int) -> bool:
        """Whether `decode` leaves this token out."""
        return token_id in self._special_ids

    def is_byte(self, token_id: int) -> bool:
        """Whether it stands for one byte, in place of a character that the vocabulary does not have."""
        return "ByteFallback" in self._decoder_kinds and bool(BYTE_TOKEN.fullmatch(self.token(token_id)))

    def special_id(self, text: str) -> int | None:
        """The token that is this text and that `decode` leaves out; None if there is none."""
        token_id = self._backend.token_to_id(text)
        return token_id if token_id in self._special_ids else None

    def token_bytes(self, token_id: int) -> bytes:
        """The UTF-8 that one token stands for, possibly part of a character; special tokens stand for their name."""
        token = self.token(token_id)
        if self._decoder_kinds == ["ByteLevel"]:
            return token_bytes(token)
        if self.is_byte(token_id):
            return bytes([int(token[3:5], 16)])
        if token.startswith("\u2581"):  # how SentencePiece writes a space
            return token.replace("\u2581", " ").encode()
        return self.decode([token_id], skip_special_tokens=False).encode()

    def stream(self, skip_special_tokens: bool = True, after: Sequence[int] = ()) -> IncrementalDecoder:
        """A decoder for one output that grows token by token. after: the prompt that it continues: where a text begins,
        SentencePiece drops a space, which here stands between the two."""
        stream, left_out = self._stream(), self._special_ids if skip_special_tokens else frozenset[int]()
        last = next((token_id for token_id in reversed(after) if token_id not in left_out), None)
        if last is not None and not stream.follow(last) and self._text_token is not None:
            stream.follow(self._text_token)
        return IncrementalDecoder(left_out, stream)

    @cached_property
    def _text_token(self) -> int | None:
        """One that stands for text by itself; None if all are special, or parts of characters."""
        ordinary = (one for one in range(self._backend.get_vocab_size()) if one not in self._special_ids)
        return next((one for one in ordinary if self._stream().follow(one)), None)

    def _stream(self) -> TextStream:
        if self._decoder_kinds == ["ByteLevel"]:
            return ByteStream(self._backend.id_to_token)
        if not self._has_bytes:
            return LibraryStream(self._backend)
        # What is to be left out does not reach it.
        decode = partial(self.decode, skip_special_tokens=False)
        return WindowStream(decode, self._backend.id_to_token, "ByteFallback" in self._decoder_kinds)


def _backend(text: str, file: Path) -> tokenizers.Tokenizer:
    try:
        return tokenizers.Tokenizer.from_str(text)
    except Exception as error:  # the library raises bare Exception
        raise CheckpointError(str(file), f"is no tokenizer: {error}") from error


def _decoder_kinds(parts: Mapping[str, Any]) -> list[str]:
    """Types of the decoder, its parts if it is a sequence."""
    decoder = parts.get("decoder") or {}
    return [part["type"] for part in decoder.get("decoders", [decoder]) if "type" in part]
