"""Paths that the gateway treats differently from the API."""

from __future__ import annotations

OPEN_PATHS = frozenset({"/health", "/ping", "/live", "/version", "/metrics", "/openapi.json"})
"""No key is needed here, no limit holds, and a gateway that drains still answers."""
QUIET_PATHS = frozenset({"/health", "/ping", "/live", "/metrics"})
"""Requested every few seconds by machines, so their lines are for debugging."""
HEALTH_PATHS = frozenset({"/health", "/ping", "/live"})
"""Answered before all other requests that wait for their turn."""
