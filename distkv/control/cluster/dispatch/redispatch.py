"""Requests that wait at one instance while another has memory for all of them: they move whole, before they begin.

That costs a message, and no KV: whatever fits elsewhere alone goes there, and lending is for what does not.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, islice

from distkv.control.cluster.policy.interface import Instances, InstanceView
from distkv.wire.messages.to_gmanager import WaitingRequest

MOST_LOOKED_AT = 8


def roomiest(instance_id: str, instances: Instances) -> InstanceView | None:
    """The instance with most memory to spare, of those that a request could begin at."""
    first = (next(_able(instance_id, instances, waiting=waiting), None) for waiting in (False, True))
    return max((view for view in first if view is not None), key=spare_tokens, default=None)


def redispatch(request: WaitingRequest, instance_id: str, instances: Instances) -> InstanceView | None:
    """One that could begin all of the request at once, one where nobody waits if there is any."""
    able = chain.from_iterable(_able(instance_id, instances, waiting=waiting) for waiting in (False, True))
    return next(
        (view for view in able if view.takes(request.num_tokens) and request.num_tokens <= spare_tokens(view)), None
    )


def spare_tokens(view: InstanceView) -> int:
    """What an instance has memory for besides what its own requests will need, and those on their way to it."""
    return min(view.lendable_blocks, view.free_blocks) * max(1, view.block_tokens)


def _able(instance_id: str, instances: Instances, *, waiting: bool) -> Iterator[InstanceView]:
    """Of the few others that have most to lend, those where it would begin at once. waiting: whether requests wait
    there."""
    found = islice(instances.able_to_lend(None, waiting=waiting, skip={instance_id}), MOST_LOOKED_AT)
    return (view for view in found if view.begins_at_once)
