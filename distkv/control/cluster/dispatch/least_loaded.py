"""Requests go to the instance with the fewest."""

from __future__ import annotations

from collections.abc import Collection

from distkv.control.cluster.policy.interface import Instances, InstanceView
from distkv.wire.messages.to_gmanager import Locate

MOST_PASSED = 8
"""Instances that would refuse a request for its length and are passed over."""


class LeastLoaded:
    """`least-loaded`: looks at room and at how many requests there are, and at no more."""

    def choose(self, request: Locate, instances: Instances) -> InstanceView | None:
        """Best first: it takes a request so long; nobody waits there; it fits locally, then the fewest requests; else
        the most free memory."""
        skip, refusing = set(request.exclude), None
        for _ in range(MOST_PASSED + 1):
            chosen = _best(request.num_tokens, instances, skip)
            if chosen is None or chosen.takes(request.num_tokens):
                return chosen or refusing
            refusing = refusing or chosen
            skip.add(chosen.instance_id)
        return refusing


def _best(num_tokens: int, instances: Instances, skip: Collection[str]) -> InstanceView | None:
    for waiting in (False, True):
        chosen = instances.fitting(num_tokens, waiting=waiting, skip=skip)
        chosen = chosen or instances.roomiest(waiting=waiting, skip=skip)
        if chosen is not None:
            return chosen
    return None
