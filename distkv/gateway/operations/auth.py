"""API keys."""

from __future__ import annotations

import secrets

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from distkv.gateway.operations.clients import is_of_key
from distkv.gateway.operations.paths import OPEN_PATHS
from distkv.gateway.schema.errors import ApiError


class Auth:
    """Refuses requests without one of the keys; without keys it lets everything through."""

    def __init__(self, app: ASGIApp, keys: tuple[str, ...]) -> None:
        self._app = app
        self._keys = [key.encode() for key in keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The ASGI application."""
        if scope["type"] == "http" and scope["path"] not in OPEN_PATHS:
            try:
                self._check_key(scope)
            except ApiError as refused:
                await refused.response()(scope, receive, send)
                return
        await self._app(scope, receive, send)

    def _check_key(self, scope: Scope) -> None:
        if not self._keys:
            return
        scheme, _, given = Headers(scope=scope).get("authorization", "").partition(" ")
        # All keys are compared, so that the time taken says nothing about them.
        matches = [secrets.compare_digest(given.strip().encode(), key) for key in self._keys]
        if scheme.lower() != "bearer" or not any(matches):
            problem = "the API key is wrong" if given else "no API key was given"
            raise ApiError(401, f"{problem}; send 'Authorization: Bearer KEY'", code="invalid_api_key")
        is_of_key(scope, matches.index(True))
