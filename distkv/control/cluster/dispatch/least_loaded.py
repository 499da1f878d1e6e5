"""Requests go to the instance with the fewest."""

from __future__ import annotations

from distkv.control.cluster.policy.interface import Instances, InstanceView
from distkv.wire.messages.to_gmanager import Locate


class LeastLoaded:
    """`least-loaded`: looks at room and at how many requests there are, and at no more."""

    def choose(self, request: Locate, instances: Instances) -> InstanceView | None:
        """Best first: nobody waits there; it fits locally, then the fewest requests; else the most free memory."""
        skip = frozenset(request.exclude)
        for waiting in (False, True):
            chosen = instances.fitting(request.num_tokens, waiting=waiting, skip=skip)
            chosen = chosen or instances.roomiest(waiting=waiting, skip=skip)
            if chosen is not None:
                return chosen
        return None
