"""How much text one token can stand for: what says early that a text is too long, whatever its tokens are."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from distkv.text.detokenizer import byte_alphabet

# The most that composing characters shortens UTF-8 by: three Hangul letters of three bytes become one of three.
_NFC_SHRINKS = 3
_KEEP_ALL = {"ByteLevel", "Digits", "Metaspace"}


def most_bytes_per_token(parts: Mapping[str, Any], vocab: Collection[str]) -> int | None:
    """Bytes of UTF-8 that one token stands for at most; None for a tokenizer that may drop text or put any amount of it
    into one token (unknown words, stripped spaces).

    parts: what the tokenizer says of itself as JSON.
    """
    added = parts.get("added_tokens") or []
    if any(token.get("lstrip") or token.get("rstrip") for token in added):
        return None
    shrinks = _shrinks(parts.get("normalizer"))
    if shrinks is None or not all(map(_keeps_all, _each(parts.get("pre_tokenizer"), "pretokenizers"))):
        return None
    kinds = {one["type"] for one in _each(parts.get("pre_tokenizer"), "pretokenizers")}
    model = parts["model"]
    if model["type"] == "BPE" and "ByteLevel" in kinds and all(one in vocab for one in byte_alphabet()):
        sizes = [*map(len, vocab), *(len(token["content"].encode()) for token in added)]
    elif model.get("byte_fallback") and all(f"<0x{byte:02X}>" in vocab for byte in range(256)):
        sizes = [len(token.encode()) for token in vocab]
    else:
        return None
    return shrinks * max(sizes)


def _each(part: Mapping[str, Any] | None, inner: str) -> Iterator[Mapping[str, Any]]:
    if part is not None and part["type"] == "Sequence":
        for one in part[inner]:
            yield from _each(one, inner)
    elif part is not None:
        yield part


def _shrinks(normalizer: Mapping[str, Any] | None) -> int | None:
    factor = 1
    for one in _each(normalizer, "normalizers"):
        if one["type"] == "NFC":
            factor *= _NFC_SHRINKS
        elif one["type"] != "Prepend" and not _replaces_space(one):
            return None
    return factor


def _replaces_space(one: Mapping[str, Any]) -> bool:
    return one["type"] == "Replace" and one["pattern"] == {"String": " "} and bool(one["content"])


def _keeps_all(one: Mapping[str, Any]) -> bool:
    return one["type"] in _KEEP_ALL or (one["type"] == "Split" and one["behavior"] != "Removed")
