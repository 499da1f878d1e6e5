"""httptools' parser of requests, for a server that upgrades to no other protocol."""

from __future__ import annotations

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol


class RequestParser:
    """Reads a request that offers an upgrade as if it did not, which HTTP allows (RFC 9110, section 7.8).

    Java's HttpClient and `curl --http2` offer h2c with every first request. httptools ends such a message at its head,
    and would take the body for the next one. So a new parser reads that head again without its `Upgrade`, then what
    comes behind it. All callbacks go to `connection`, which ignores the end of a head and of a message where
    `should_upgrade()`; CONNECT, which also is an upgrade, it refuses.
    """

    def __init__(self, connection: HttpToolsProtocol) -> None:
        self._connection = connection
        self._begin()

    def _begin(self) -> None:
        self._parser = httptools.HttpRequestParser(self._connection)
        self._parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn's

    def feed_data(self, data: bytes) -> None:
        """Raises httptools.HttpParserError."""
        while True:
            try:
                self._parser.feed_data(data)
                return
            except httptools.HttpParserUpgrade as upgrade:
                data = self._head_without_upgrade() + data[upgrade.args[0] :]
                self._begin()

    def _head_without_upgrade(self) -> bytes:
        method, url, version = self.get_method(), self._connection.url, self.get_http_version().encode()
        headers = (b"%s: %s\r\n" % header for header in self._connection.headers if header[0] != b"upgrade")
        return b"%s %s HTTP/%s\r\n%s\r\n" % (method, url, version, b"".join(headers))

    def get_method(self) -> bytes:
        """Of the request whose head is complete, as the following."""
        return self._parser.get_method()

    def get_http_version(self) -> str:
        """Such as 1.1."""
        return self._parser.get_http_version()

    def should_keep_alive(self) -> bool:
        """Whether another request may follow."""
        return self._parser.should_keep_alive()

    def should_upgrade(self) -> bool:
        """Whether its head is to be read again."""
        return self._parser.should_upgrade()
