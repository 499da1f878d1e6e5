"""Policies by name."""

from __future__ import annotations

from distkv.control.cluster.policy.contract import ContractPolicy
from distkv.control.cluster.policy.interface import Policy
from distkv.errors import ConfigError

POLICIES: dict[str, Policy] = {"contract": ContractPolicy()}


def policy_named(name: str) -> Policy:
    """Raises ConfigError for a name that is none."""
    if name not in POLICIES:
        raise ConfigError("policy", f"expected one of {', '.join(POLICIES)}, got {name!r}")
    return POLICIES[name]
