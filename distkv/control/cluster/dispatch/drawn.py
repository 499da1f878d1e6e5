"""Requests go anywhere."""

from __future__ import annotations

from random import Random

from distkv.control.cluster.policy.interface import Instances, InstanceView
from distkv.wire.messages.to_gmanager import Locate

DRAWS = 8
"""Before one is looked for that was not excluded, or takes a request so long."""


class Drawn:
    """`random`: to compare with."""

    def __init__(self, entropy: Random) -> None:
        self._entropy = entropy

    def choose(self, request: Locate, instances: Instances) -> InstanceView | None:
        """Any ready one that takes a request so long; any at all if none of those drawn does."""
        skip = frozenset(request.exclude)
        if found := list(instances.drawn(DRAWS, DRAWS, self._entropy, skip=skip)):
            return self._entropy.choice([view for view in found if view.takes(request.num_tokens)] or found)
        return instances.roomiest(waiting=False, skip=skip) or instances.roomiest(waiting=True, skip=skip)
