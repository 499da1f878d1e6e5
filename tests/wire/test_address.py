"""Addresses taken apart and put together."""

from __future__ import annotations

import pytest

from distkv.wire.address import join_host_port, split_host_port


@pytest.mark.parametrize(
    ("host", "joined"),
    [
        ("10.0.0.1", "10.0.0.1:7070"),
        ("::1", "[::1]:7070"),
        ("[::1]", "[::1]:7070"),
        ("gm.example.org", "gm.example.org:7070"),
    ],
)
def test_a_host_is_written_with_the_brackets_that_it_needs(host: str, joined: str) -> None:
    """Whether its user wrote them or not: a gateway at [::1] was ready, and `distkv up` ended for its address."""
    assert join_host_port(host, 7070) == joined
    assert split_host_port(joined) == (host.strip("[]"), 7070)
