"""The processes of a local cluster, as its user sees them."""

from __future__ import annotations

import contextlib
import ssl
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from urllib.parse import urlsplit

from distkv.client.local.child import Child

HEALTH_TIMEOUT_S = 2.0


class GManagerHandle(Child):
    """The gManager's process."""


class InstanceHandle(Child):
    """One instance's rManager process; its worker belongs to it. `kill()` ends both at once."""

    @property
    def instance_id(self) -> str:
        return self.name.removeprefix("instance ")


class GatewayHandle(Child):
    """The gateway's process."""

    @property
    def url(self) -> str:
        """Where HTTP clients reach it, "http://host:port"."""
        return self.address

    def serves(self) -> bool:
        """Whether its health check passes: it takes requests, and knows an instance that does."""
        where = urlsplit(self.url)
        if where.scheme == "https":
            # Whether clients trust its certificate is not the question.
            context = ssl.create_default_context()
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
            connection: HTTPConnection = HTTPSConnection(where.netloc, timeout=HEALTH_TIMEOUT_S, context=context)
        else:
            connection = HTTPConnection(where.netloc, timeout=HEALTH_TIMEOUT_S)
        with contextlib.closing(connection):
            try:
                connection.request("GET", "/health")
                return connection.getresponse().status == 200
            except (OSError, HTTPException):
                return False
