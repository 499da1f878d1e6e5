"""What comes over a link reaches a library only if the owner of the endpoint has sent it, whole."""

from __future__ import annotations

import msgspec
import pytest

from distkv.errors import MalformedMessage
from distkv.wire.links.transports.one_sided.access import PoolOffer, opened_access, sealed_access
from distkv.wire.links.transports.one_sided.sealing import new_seal_key, seal
from distkv.wire.links.transports.ucx.access import UcxAccess

OFFER = PoolOffer(version="1.22", seal_key=new_seal_key())
ACCESS = UcxAccess(worker=b"worker", rkey=b"key", address=0x7F00_0000_0000, num_bytes=8192, memory="host")


def test_what_was_sealed_is_read() -> None:
    assert opened_access(UcxAccess, sealed_access(ACCESS, OFFER), OFFER, 8192) == ACCESS


def test_no_bit_may_differ() -> None:
    sealed = sealed_access(ACCESS, OFFER)
    for at in range(len(sealed)):
        wrong = bytearray(sealed)
        wrong[at] ^= 1
        with pytest.raises(MalformedMessage, match="not sealed with the key of its endpoint"):
            opened_access(UcxAccess, bytes(wrong), OFFER, 8192)
    for size in range(len(sealed)):
        with pytest.raises(MalformedMessage, match="not sealed"):
            opened_access(UcxAccess, sealed[:size], OFFER, 8192)


def test_another_incarnation_has_another_key() -> None:
    other = PoolOffer(version="1.22", seal_key=new_seal_key())
    with pytest.raises(MalformedMessage, match="not sealed"):
        opened_access(UcxAccess, sealed_access(ACCESS, other), OFFER, 8192)


@pytest.mark.parametrize("key", ["", "zz" * 32, "ä" * 64])
def test_a_key_that_is_none(key: str) -> None:
    with pytest.raises(MalformedMessage):
        opened_access(UcxAccess, sealed_access(ACCESS, OFFER), PoolOffer(version="1.22", seal_key=key), 8192)


@pytest.mark.parametrize(
    "change",
    [{"num_bytes": 8193}, {"address": 0}, {"address": 2**64 - 8192}, {"worker": b""}, {"rkey": bytes(25 * 1024)}],
    ids=str,
)
def test_the_owner_may_be_wrong_too(change: dict[str, object]) -> None:
    plain = msgspec.msgpack.encode(msgspec.to_builtins(ACCESS, builtin_types=(bytes,)) | change)
    with pytest.raises(MalformedMessage, match="the access to a pool"):
        opened_access(UcxAccess, seal(plain, OFFER.seal_key), OFFER, 8192)
