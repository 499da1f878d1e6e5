"""How a debtor uses a lease: when it stops, and when it renews. Both follow what the creditor granted."""

from __future__ import annotations

RENEWALS = 4
"""In the time of one lease, so that three in a row may be lost."""
SHORTEST_PERIOD_S = 0.05
"""However short a lease is, renewals to one creditor are no closer than this."""


def valid_until(sent_at: float, lease_s: float, margin_s: float) -> float:
    """When to stop using a lease of `lease_s` that was requested at `sent_at`: `margin_s` early, but at most a quarter.

    The creditor counts from when it received the request, so its end is later, whatever its own settings are.
    """
    return sent_at + lease_s - min(margin_s, lease_s / RENEWALS)


def renewal_period_s(lease_s: float) -> float:
    """How long after one renewal of a lease the next is due."""
    return max(SHORTEST_PERIOD_S, lease_s / RENEWALS)
