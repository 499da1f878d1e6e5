"""Policies by name."""

from __future__ import annotations

from collections.abc import Callable

from distkv.config import AdviceSettings
from distkv.control.cluster.policy.contract import ContractPolicy
from distkv.control.cluster.policy.even import EvenPolicy
from distkv.control.cluster.policy.greedy import GreedyPolicy
from distkv.control.cluster.policy.interface import Policy
from distkv.control.cluster.policy.none import NoPolicy
from distkv.errors import ConfigError

POLICIES: dict[str, Callable[[AdviceSettings], Policy]] = {
    "contract": lambda _: ContractPolicy(),
    "greedy": GreedyPolicy,
    "even": EvenPolicy,
    "none": lambda _: NoPolicy(),
}


def make_policy(settings: AdviceSettings) -> Policy:
    """Raises ConfigError for a name that is none."""
    if settings.policy not in POLICIES:
        raise ConfigError("policy", f"expected one of {', '.join(POLICIES)}, got {settings.policy!r}")
    return POLICIES[settings.policy](settings)
