from __future__ import annotations

import pytest

from distkv.wire.links.transports.one_sided.devices import device_of


@pytest.mark.parametrize("host", ["127.0.0.1", "127.1.2.3"])
def test_loopback(host: str) -> None:
    assert device_of(host) == "lo"


@pytest.mark.parametrize("host", ["192.0.2.1", "2001:db8::1"])
def test_an_address_of_nobody_here(host: str) -> None:
    with pytest.raises(ValueError, match="no network device has the address"):
        device_of(host)


@pytest.mark.parametrize("host", ["", "localhost", "10.0.0"])
def test_what_is_no_address(host: str) -> None:
    with pytest.raises(ValueError):
        device_of(host)
