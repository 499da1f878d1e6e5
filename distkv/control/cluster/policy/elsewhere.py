"""Waiting requests that a plan must not free memory for: all of each fits another instance, where it is sent whole."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import msgspec

from distkv.control.cluster.policy.interface import InstanceView


class Elsewhere:
    """What instances have to spare for requests that can begin there at once, as `redispatch` sends them. Of a plan."""

    def __init__(self, views: Iterable[InstanceView]) -> None:
        """Of these: where requests would begin at once."""
        able = [view for view in views if view.begins_at_once]
        self._views = {view.instance_id: view for view in able}
        self._spare = {view.instance_id: min(view.lendable_blocks, view.free_blocks) for view in able}

    def lends(self, instance_id: str, num_blocks: int) -> None:
        """So many rBlocks are planned to go there."""
        if instance_id in self._spare:
            self._spare[instance_id] -= num_blocks

    def staying(self, view: InstanceView) -> tuple[InstanceView, Counter[str]]:
        """An instance without the waiting requests that fit elsewhere alone, and the rBlocks that these take there."""
        taken: Counter[str] = Counter()
        staying = []
        left = len(view.waiting_tokens)
        for size, num_tokens in zip(view.waiting_sizes[:left], view.waiting_tokens, strict=False):
            found = self._fitting(view.instance_id, num_tokens) if num_tokens else None
            if found is None:
                staying.append((size, num_tokens))
            else:
                num_blocks = found.blocks_for(num_tokens)
                self._spare[found.instance_id] -= num_blocks
                taken[found.instance_id] += num_blocks
        if not taken:
            return view, taken
        sizes = (*(size for size, _ in staying), *view.waiting_sizes[left:])
        tokens = tuple(num_tokens for _, num_tokens in staying)
        return msgspec.structs.replace(view, waiting_sizes=sizes, waiting_tokens=tokens), taken

    def _fitting(self, instance_id: str, num_tokens: int) -> InstanceView | None:
        """The one with most to spare, if that is enough; not the instance itself."""
        able = (name for name, view in self._views.items() if name != instance_id and view.takes(num_tokens))
        best = max(able, key=lambda name: self._spare[name], default="")
        view = self._views.get(best)
        return view if view is not None and view.blocks_for(num_tokens) <= self._spare[best] else None
