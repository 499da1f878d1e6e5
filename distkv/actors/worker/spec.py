"""What an rManager tells its engine worker at birth. Handed over in the environment, which other users cannot read."""

from __future__ import annotations

import msgspec

from distkv.types import CpuKernels, KvCacheDtype, Transport

SPEC_VARIABLE = "DISTKV_WORKER_SPEC"


class WorkerSpec(msgspec.Struct, frozen=True, kw_only=True):
    """pipe_address: of the private channel back. kv_tokens, kv_cache_memory_bytes: at most one is given. cores: to
    compute on; none if the system chooses."""

    pipe_address: str
    instance_id: str
    incarnation: int
    model: str
    dtype: str
    device: str
    kv_cache_dtype: KvCacheDtype
    gpu_memory_utilization: float
    microbatches: int | None
    block_size: int
    kv_tokens: int | None
    kv_cache_memory_bytes: int | None
    threads: int
    cpu_kernels: CpuKernels
    cores: tuple[int, ...]
    data_address: str
    attend_timeout_s: float
    tensor_transport: Transport
    insecure: bool
    log_level: str
    log_json: bool | None
