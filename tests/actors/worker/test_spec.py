"""WorkerSpec survives the way through the environment."""

from __future__ import annotations

import msgspec
import pytest

from distkv.actors.worker.spec import WorkerSpec
from distkv.config import DataPlaneSettings, EngineSettings, LogSettings

SPEC = WorkerSpec(
    pipe_fd=5,
    instance_id="a",
    incarnation=17,
    data_address="127.0.0.1:0",
    insecure=False,
    engine=EngineSettings(
        model="/models/m",
        dtype="float32",
        device="cpu",
        kv_cache_memory_bytes=1 << 30,
        threads=2,
        cpu_affinity="0-1",
    ),
    data=DataPlaneSettings(attend_timeout_s=2.5, tensor_transport="shm"),
    logging=LogSettings(log_level="warning"),
    profile="/profiles/m.json",
)


def test_there_and_back() -> None:
    assert msgspec.json.decode(msgspec.json.encode(SPEC), type=WorkerSpec) == SPEC


def test_what_is_missing_or_unknown_is_an_error() -> None:
    raw = msgspec.to_builtins(SPEC)
    with pytest.raises(msgspec.ValidationError, match="engine"):
        msgspec.convert({key: value for key, value in raw.items() if key != "engine"}, WorkerSpec)
    with pytest.raises(msgspec.ValidationError, match="tensor_transport"):
        msgspec.convert(raw | {"data": {"tensor_transport": "pigeon"}}, WorkerSpec)
    with pytest.raises(msgspec.ValidationError, match="treads"):
        msgspec.convert(raw | {"engine": raw["engine"] | {"treads": 1}}, WorkerSpec)
