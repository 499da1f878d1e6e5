"""How many connections the descriptors of this process allow; daemons have raised their limit by then."""

from __future__ import annotations

import resource

KEPT_DESCRIPTORS = 256
"""For files, for connections to the cluster, and for spare ones; three of four where there are few."""
SPARE = 64
MOST_WAITING = 4096


def most_connections() -> int:
    """Of connections that serve the API."""
    return max(1, _descriptors() - most_waiting())


def most_waiting() -> int:
    """Of connections that are accepted and not served yet, beside those."""
    return max(1, min(MOST_WAITING, _descriptors() // 8))


def most_spare() -> int:
    """Of connections for the OPEN_PATHS only."""
    return max(1, min(SPARE, _limit() // 16))


def _descriptors() -> int:
    return max(_limit() - KEPT_DESCRIPTORS, _limit() // 4)


def _limit() -> int:
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]
