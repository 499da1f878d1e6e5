"""What shipping queries and fetching KV take by a profile: what a worker believes before it has measured it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from distkv.control.performance.model import PerformanceModel
from distkv.engine.attention.fetch.costs import Model, Way, Work
from distkv.wire.messages.profile import LinkKind, Profile
from distkv.wire.profile_file import load_profile

_LEAST_S = 1e-9


class LinkPath(Protocol):
    """What a link to a creditor says of itself; see TensorLink. Where the pool is mapped, nothing is read before it is
    attended to."""

    @property
    def within_host(self) -> bool: ...

    @property
    def mapped(self) -> memoryview | None: ...


def cost_models(profile: Profile, block_tokens: int) -> Callable[[LinkPath], Model]:
    """By the link to a creditor: the seconds of a layer."""
    performance = PerformanceModel(profile)

    def over(path: LinkPath) -> Model:
        link: LinkKind = "host" if path.within_host else "network"
        is_mapped = path.mapped is not None

        def layer_s(way: Way, work: Work) -> float:
            tokens = work.blocks * block_tokens
            if way == "ship":
                # Of the chunk itself each row attends to half, on average.
                own = max(0, work.own_blocks * block_tokens - work.rows // 2)
                step_s = performance.ship_s(work.rows, tokens, local_tokens=own, link=link)
                step_s = max(step_s, performance.carry_s(work.rows, link))
            else:
                fetched = 0 if is_mapped else tokens
                step_s = performance.fetch_s(work.rows, tokens, fetched_tokens=fetched, link=link)
            return max(_LEAST_S, step_s / profile.layers)

        return layer_s

    return over


def cost_models_of(path: str | None, block_tokens: int) -> Callable[[LinkPath], Model] | None:
    """Of the profile in this file; None without one. Raises ConfigError."""
    return None if path is None else cost_models(load_profile(Path(path).expanduser()), block_tokens)
