"""WorkerSpec survives the way through the environment."""

from __future__ import annotations

import msgspec
import pytest

from distkv.actors.worker.spec import WorkerSpec

SPEC = WorkerSpec(
    pipe_address="ipc://@x",
    instance_id="a",
    incarnation=17,
    model="/models/m",
    dtype="float32",
    device="cpu",
    kv_cache_dtype="auto",
    gpu_memory_utilization=0.9,
    microbatches=None,
    block_size=16,
    kv_tokens=None,
    kv_cache_memory_bytes=1 << 30,
    threads=2,
    cpu_kernels="auto",
    cores=(0, 1),
    data_address="127.0.0.1:0",
    attend_timeout_s=2.5,
    tensor_transport="shm",
    insecure=False,
    log_level="info",
    log_json=None,
)


def test_there_and_back() -> None:
    assert msgspec.json.decode(msgspec.json.encode(SPEC), type=WorkerSpec) == SPEC


def test_what_is_missing_or_unknown_is_an_error() -> None:
    raw = msgspec.to_builtins(SPEC)
    with pytest.raises(msgspec.ValidationError, match="threads"):
        msgspec.convert({key: value for key, value in raw.items() if key != "threads"}, WorkerSpec)
    with pytest.raises(msgspec.ValidationError, match="tensor_transport"):
        msgspec.convert(raw | {"tensor_transport": "pigeon"}, WorkerSpec)
