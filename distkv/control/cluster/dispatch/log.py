"""Where requests were sent of late, and by what was known then."""

from __future__ import annotations

from dataclasses import dataclass

from distkv.control.cluster.policy.interface import InstanceView
from distkv.wire.messages.to_client import Dispatched
from distkv.wire.messages.to_gmanager import Locate

MAX_KEPT = 4096


@dataclass(frozen=True, slots=True)
class Choice:
    """One dispatch: to where, by what, and when."""

    at: float
    chosen: InstanceView
    num_tokens: int
    num_ready: int
    excluded: int


class DispatchLog:
    """The newest dispatches, by request; of one that was sent several times, the last."""

    def __init__(self) -> None:
        self._choices: dict[str, Choice] = {}

    def note(self, locate: Locate, chosen: InstanceView, num_ready: int, now: float) -> None:
        """A request is sent to an instance."""
        self._choices.pop(locate.request_id, None)
        choice = Choice(now, chosen, locate.num_tokens, num_ready, len(locate.exclude))
        self._choices[locate.request_id] = choice
        if len(self._choices) > MAX_KEPT:
            del self._choices[next(iter(self._choices))]

    def find(self, name: str, now: float) -> Dispatched:
        """What is remembered of the newest request of this name, or made of that: `name-...`, `name~...`."""
        made = f"{name}-", f"{name}~"
        found = next((one for one in reversed(self._choices) if one == name or one.startswith(made)), "")
        choice = self._choices.get(found)
        if choice is None:
            return Dispatched(query=name)
        return Dispatched(
            query=name,
            request_id=found,
            instance_id=choice.chosen.instance_id,
            ago_s=max(0.0, now - choice.at),
            num_tokens=choice.num_tokens,
            num_ready=choice.num_ready,
            load=choice.chosen.load,
            waiting=choice.chosen.waiting,
            free_tokens=max(0, choice.chosen.room_tokens),
            excluded=choice.excluded,
        )
