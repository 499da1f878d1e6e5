"""distkv: the KV-cache memory of many LLM replicas as one pool.

Names are loaded when first used, and none of them loads torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from distkv.client.async_client import AsyncClient
    from distkv.client.blocking import Client
    from distkv.client.local.cluster import LocalCluster
    from distkv.errors import (
        CheckpointError,
        ClusterError,
        ClusterUnreachable,
        ConfigError,
        DistKVError,
        InvalidParams,
        NoInstanceReady,
        RequestError,
        RequestFailed,
        RequestRefused,
        RequestUnknown,
        StartupFailed,
    )
    from distkv.offline.llm import LLM
    from distkv.structured_output import StructuredOutput
    from distkv.types import Chunk, RequestOutput, SamplingParams, TokenLogprobs

__version__ = "0.1.0"

_HOME = {
    "AsyncClient": "distkv.client.async_client",
    "CheckpointError": "distkv.errors",
    "Chunk": "distkv.types",
    "Client": "distkv.client.blocking",
    "ClusterError": "distkv.errors",
    "ClusterUnreachable": "distkv.errors",
    "ConfigError": "distkv.errors",
    "DistKVError": "distkv.errors",
    "InvalidParams": "distkv.errors",
    "LLM": "distkv.offline.llm",
    "LocalCluster": "distkv.client.local.cluster",
    "NoInstanceReady": "distkv.errors",
    "RequestError": "distkv.errors",
    "RequestFailed": "distkv.errors",
    "RequestOutput": "distkv.types",
    "RequestRefused": "distkv.errors",
    "RequestUnknown": "distkv.errors",
    "SamplingParams": "distkv.types",
    "StartupFailed": "distkv.errors",
    "StructuredOutput": "distkv.structured_output",
    "TokenLogprobs": "distkv.types",
}

__all__ = [
    "LLM",
    "AsyncClient",
    "CheckpointError",
    "Chunk",
    "Client",
    "ClusterError",
    "ClusterUnreachable",
    "ConfigError",
    "DistKVError",
    "InvalidParams",
    "LocalCluster",
    "NoInstanceReady",
    "RequestError",
    "RequestFailed",
    "RequestOutput",
    "RequestRefused",
    "RequestUnknown",
    "SamplingParams",
    "StartupFailed",
    "StructuredOutput",
    "TokenLogprobs",
    "__version__",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'distkv' has no attribute {name!r}")
    value: Any = getattr(importlib.import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
