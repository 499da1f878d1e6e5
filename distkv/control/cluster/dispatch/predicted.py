"""Requests go where they are predicted to take least time."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from random import Random

from distkv.control.cluster.dispatch.prediction import Usual, predict
from distkv.control.cluster.policy.interface import Instances, InstanceView
from distkv.wire.messages.to_gmanager import Locate

ALL = 16
"""So many instances are all looked at."""
DRAWN = 8
"""Of more, so many are drawn."""
BEST = 2
"""Of more, so many of those with the fewest requests, and of those with most room."""


class Predicted:
    """`predicted`: by the time to the first token and the time per token that each of some instances would give. Of
    more than ALL some are drawn, and looked at beside the best by the indices."""

    def __init__(self, entropy: Random, *, shares_memory: bool) -> None:
        """shares_memory: whether a request that is too large for its instance borrows; else it would be refused."""
        self._entropy = entropy
        self._shares_memory = shares_memory

    def choose(self, request: Locate, instances: Instances) -> InstanceView | None:
        """First where it is not refused, then where it would begin at once, for waits are the least certain. Of these
        the least time until the last token; where that is equal the fewest requests, then the most room."""
        found = {view.instance_id: view for view in self._found(request, instances)}
        if not found:
            return None
        usual = Usual.of(found.values())

        def order(view: InstanceView) -> tuple[bool, bool, float, int, int, str]:
            found = predict(request, view, usual)
            rest = found.total_s, view.load, -view.room_tokens, view.instance_id
            return self._refuses(request, view), found.wait_s > 0, *rest

        return min(found.values(), key=order)

    def _found(self, request: Locate, instances: Instances) -> Iterator[InstanceView]:
        skip = frozenset(request.exclude)
        drawn = list(instances.drawn(ALL, DRAWN, self._entropy, skip=skip))
        yield from drawn
        for waiting in (False, True):
            yield from _best(request, instances, waiting, skip)

    def _refuses(self, request: Locate, view: InstanceView) -> bool:
        """Whether the instance would not take it: it is longer than any may be there, or than its memory where there is
        none to borrow."""
        if not view.takes(request.num_tokens):
            return True
        return not self._shares_memory and view.total_blocks < view.blocks_for(request.num_tokens)


def _best(request: Locate, instances: Instances, waiting: bool, skip: Collection[str]) -> Iterator[InstanceView]:
    passed = set(skip)
    for _ in range(BEST):
        view = instances.fitting(request.num_tokens, waiting=waiting, skip=passed)
        view = view or instances.roomiest(waiting=waiting, skip=passed)
        if view is None:
            return
        yield view
        passed.add(view.instance_id)
