"""Web pages of other origins, whose scripts a browser lets read answers only if the server says so (CORS)."""

from __future__ import annotations

from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp

LOOPBACK = r"https?://(localhost|127\.0\.0\.1|\[::1\])(:[0-9]{1,5})?"
"""Pages that come from the browser's own machine."""


def for_web_pages(app: ASGIApp, origins: tuple[str, ...]) -> ASGIApp:
    """Let scripts of these origins, and of LOOPBACK, use the API; "*" is all. Preflights need no key."""
    return CORSMiddleware(
        app,
        allow_origins=origins,
        allow_origin_regex=LOOPBACK,
        allow_methods=["GET", "POST"],
        allow_headers=["*"],
        expose_headers=["x-request-id", "retry-after", "x-should-retry"],
        max_age=3600,
    )
