"""What chooses where requests go: a pure function of what is known of the instances."""

from __future__ import annotations

from typing import Protocol

from distkv.control.cluster.policy.interface import Instances, InstanceView
from distkv.wire.messages.to_gmanager import Locate


class Dispatcher(Protocol):
    """Looks at a bounded number of instances, however many there are."""

    def choose(self, request: Locate, instances: Instances) -> InstanceView | None:
        """The instance that should serve a request; None if none can."""


def expected_tokens(request: Locate, view: InstanceView) -> int:
    """Tokens of KV that a request is expected to need on an instance: its prompt, and as much output as those before it
    had there; all that it may have where the one or the other is not known."""
    if not request.prompt_tokens or not view.output_tokens:
        return request.num_tokens
    return min(request.num_tokens, request.prompt_tokens + view.output_tokens)
