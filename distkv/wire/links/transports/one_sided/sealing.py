"""Bytes that count only if the owner of an endpoint has sent them: libraries trust what is in them, and crash over what
is none of theirs. Who knows the endpoint knows the key, which comes by way of the rManagers."""

from __future__ import annotations

import hashlib
import hmac
import secrets

from distkv.errors import MalformedMessage

_SEAL_BYTES = 32


def new_seal_key() -> str:
    """Random, 64 hexadecimal digits."""
    return secrets.token_hex(32)


def seal(content: bytes, key: str) -> bytes:
    """The content with a seal that only this key makes."""
    return _seal_of(content, key) + content


def open_sealed(sealed: bytes, key: str) -> bytes:
    """The content. Raises MalformedMessage if it was not sealed with this key, or is not whole."""
    content = sealed[_SEAL_BYTES:]
    try:
        expected = _seal_of(content, key)
    except ValueError:
        raise MalformedMessage("the seal key of an endpoint is no key") from None
    if not hmac.compare_digest(sealed[:_SEAL_BYTES], expected):
        raise MalformedMessage("metadata is not sealed with the key of its endpoint")
    return content


def _seal_of(content: bytes, key: str) -> bytes:
    return hashlib.blake2b(content, digest_size=_SEAL_BYTES, key=bytes.fromhex(key)).digest()
