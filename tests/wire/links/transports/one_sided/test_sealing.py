from __future__ import annotations

import pytest

from distkv.errors import MalformedMessage
from distkv.wire.links.transports.one_sided.sealing import new_seal_key, open_sealed, seal


@pytest.mark.parametrize("content", [b"", b"x", b"metadata" * 1000])
def test_what_was_sealed_comes_out(content: bytes) -> None:
    key = new_seal_key()
    assert open_sealed(seal(content, key), key) == content


def test_any_change_is_noticed() -> None:
    key = new_seal_key()
    sealed = seal(b"metadata", key)
    for at in range(len(sealed)):
        with pytest.raises(MalformedMessage, match="not sealed"):
            open_sealed(sealed[:at] + bytes([sealed[at] ^ 1]) + sealed[at + 1 :], key)
        with pytest.raises(MalformedMessage, match="not sealed"):
            open_sealed(sealed[:at], key)


def test_another_key_opens_nothing() -> None:
    with pytest.raises(MalformedMessage, match="not sealed"):
        open_sealed(seal(b"metadata", new_seal_key()), new_seal_key())


def test_a_key_that_is_none() -> None:
    with pytest.raises(MalformedMessage, match="no key"):
        open_sealed(b"x" * 40, "g" * 64)
