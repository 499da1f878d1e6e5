"""Addresses taken apart and put together."""

from __future__ import annotations

import socket

import pytest

from distkv.wire.address import join_host_port, needs_ipv6, split_host_port


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


@pytest.mark.parametrize(
    ("host", "families", "needs"),
    [
        ("::1", [], True),
        ("both.test", [socket.AF_INET6, socket.AF_INET], False),
        ("four.test", [socket.AF_INET], False),
        ("six.test", [socket.AF_INET6], True),
    ],
)
def test_a_name_needs_ipv6_where_it_has_no_other_address(
    monkeypatch: pytest.MonkeyPatch, host: str, families: list[socket.AddressFamily], needs: bool
) -> None:
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_args, **_options: [(one, 0, 0, "", ()) for one in families])
    assert needs_ipv6(host) is needs


@pytest.mark.parametrize("error", [socket.gaierror(socket.EAI_NONAME, "unknown"), UnicodeError("too long")])
def test_a_name_that_is_not_known_is_for_who_listens_to_report(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def fail(*_args: object, **_options: object) -> None:
        raise error

    monkeypatch.setattr(socket, "getaddrinfo", fail)
    assert not needs_ipv6("nobody.test")
