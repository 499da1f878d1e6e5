"""Daemons outlive floods: all that arrives before it can be read, from connections that end or that stay."""

from __future__ import annotations

import pytest

from tests.cluster.attacked.floods import FLOODS


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("daemon", FLOODS)
async def test_no_flood_ends_a_daemon(checkpoint, daemon):
    """For a thousand: `python -m tests.cluster.attacked.floods DAEMON 1000`."""
    await FLOODS[daemon](checkpoint, 50)
