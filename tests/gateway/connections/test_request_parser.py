"""Requests that offer an upgrade are read as if they did not, wherever what comes is split."""

from __future__ import annotations

from typing import Any

import httptools
import pytest

from distkv.gateway.connections.request_parser import RequestParser

OFFER = b"connection: Upgrade, HTTP2-Settings\r\nupgrade: h2c\r\nhttp2-settings: AAMAAABk\r\n"
PLAIN = b"connection: Upgrade, HTTP2-Settings\r\nhttp2-settings: AAMAAABk\r\n"
REQUESTS = {
    "no body": b"GET /live?a=b HTTP/1.1\r\n%s\r\n",
    "length": b"POST /a HTTP/1.1\r\nhost: x\r\n%scontent-length: 5\r\n\r\nhello",
    "no bytes": b"POST /a HTTP/1.1\r\n%scontent-length: 0\r\n\r\n",
    "chunks": b"POST /a HTTP/1.1\r\n%stransfer-encoding: chunked\r\n\r\n5;x=y\r\nhello\r\n0\r\nx: y\r\n\r\n",
    "a request in it": b"PUT /a HTTP/1.1\r\ncontent-length: 18\r\n%s\r\nGET / HTTP/1.1\r\n\r\n",
}


class Requests:
    """All that a parser said of requests, each in the order of its parts."""

    def __init__(self) -> None:
        self.parser: Any = RequestParser(self)  # type: ignore[arg-type]
        self.found: list[list[Any]] = []

    def on_message_begin(self) -> None:
        self.url, self.headers, self.body = b"", list[tuple[bytes, bytes]](), b""

    def on_url(self, url: bytes) -> None:
        self.url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers.append((name, value))

    def on_headers_complete(self) -> None:
        if not self.parser.should_upgrade():
            parser = self.parser
            self.facts = [parser.get_method(), self.url, parser.get_http_version(), parser.should_keep_alive()]

    def on_body(self, body: bytes) -> None:
        self.body += body

    def on_message_complete(self) -> None:
        if not self.parser.should_upgrade():
            self.found.append([*self.facts, self.headers, self.body])


def read(*pieces: bytes) -> list[list[Any]]:
    requests = Requests()
    for piece in pieces:
        requests.parser.feed_data(piece)
    return requests.found


def as_httptools_reads(data: bytes) -> list[list[Any]]:
    requests = Requests()
    requests.parser = httptools.HttpRequestParser(requests)
    requests.parser.set_dangerous_leniencies(lenient_data_after_close=True)
    requests.parser.feed_data(data)
    return requests.found


@pytest.mark.parametrize("kind", REQUESTS)
def test_an_offer_changes_nothing_wherever_it_is_split(kind: str) -> None:
    last = b"GET /last HTTP/1.1\r\n\r\n"
    offered, plain = REQUESTS[kind] % OFFER, REQUESTS[kind] % PLAIN
    expected = as_httptools_reads(plain * 2 + last)
    assert len(expected) == 3
    data = offered * 2 + last
    assert read(data) == expected
    for at in range(len(data)):
        assert read(data[:at], data[at:]) == expected
    assert read(*(data[at : at + 1] for at in range(len(data)))) == expected


@pytest.mark.parametrize("head", [b"GET / HTTP/1.1\r\nconnection: close\r\n", b"GET / HTTP/1.0\r\n"])
def test_nothing_is_read_after_the_last_request(head: bytes) -> None:
    after = b"GET /after HTTP/1.1\r\n\r\n"
    assert read(head + OFFER + b"\r\n" + after, after) == as_httptools_reads(head + PLAIN + b"\r\n")


@pytest.mark.parametrize(
    "framing",
    [b"content-length: 5\r\ntransfer-encoding: chunked\r\n", b"content-length: 5\r\ncontent-length: 6\r\n"],
)
def test_a_body_that_is_framed_twice_stays_an_error(framing: bytes) -> None:
    with pytest.raises(httptools.HttpParserError):
        read(b"POST / HTTP/1.1\r\n" + OFFER + framing + b"\r\nhello")
