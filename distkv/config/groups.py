"""Groups of settings that are handed on whole: to control, to the engine worker, to a logger.

A setting is declared here or in `schema`, once. Its name, and so its flag, is the same whatever group it is in; numbers
that are found out later stand beside a group, not in it.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from distkv.config.values import check_device, parse_cores
from distkv.errors import ConfigError
from distkv.types import (
    AttentionBackend,
    CpuKernels,
    DispatchName,
    KvCacheDtype,
    LogLevel,
    PolicyName,
    PrefillKv,
    Transport,
)
from distkv.wording import counted

_SUFFIXED = {"suffixed": True}

Port = Annotated[int, Meta(ge=0, le=65535)]
Positive = Annotated[int, Meta(ge=1)]
PositiveSuffixed = Annotated[int, Meta(ge=1, extra=_SUFFIXED)]
Seconds = Annotated[float, Meta(gt=0, le=86400)]
HeartbeatPeriod = Annotated[Seconds, Meta(description="Seconds between heartbeats.")]


class Group(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base: a group of settings."""


class LogSettings(Group, frozen=True, kw_only=True):
    """What a process writes about itself."""

    log_level: Annotated[LogLevel, Meta(description="Least severe log line that is written.")] = "info"
    log_json: Annotated[
        bool | None, Meta(description="Write logs as JSON, one object per line; auto unless on a terminal.")
    ] = None


class MembershipSettings(Group, frozen=True, kw_only=True):
    """How a gManager tells who is there."""

    heartbeat_s: HeartbeatPeriod = 0.5
    dead_after_s: Annotated[Seconds, Meta(description="Seconds without a heartbeat until an instance is dead.")] = 4.0
    expected_instances: Annotated[
        Annotated[int, Meta(ge=0)],
        Meta(description="Once so many joined nobody else is waited for; 0: others may join for ten seconds."),
    ] = 0

    def __post_init__(self) -> None:
        if self.dead_after_s <= self.heartbeat_s:
            raise ConfigError("dead_after_s", f"must exceed heartbeat_s ({self.heartbeat_s}), got {self.dead_after_s}")


class AdviceSettings(Group, frozen=True, kw_only=True):
    """What a gManager advises instances and clients by."""

    policy: Annotated[
        PolicyName,
        Meta(
            description="How KV memory is shared: contract, by debtors that borrow on demand; greedy, planned by the "
            "profiles of the instances; even, on demand and evened out within a host; none, not at all."
        ),
    ] = "contract"
    greedy_debtor_batch: Annotated[
        Positive | None,
        Meta(description="greedy: largest batch of an instance that lets blocks leave; auto is where steps saturate."),
    ] = None
    greedy_creditor_utilization: Annotated[
        Annotated[float, Meta(gt=0, le=1)],
        Meta(description="greedy: largest share of an instance's pool in use, for it to get blocks of others."),
    ] = 0.9
    greedy_min_gain: Annotated[
        Annotated[float, Meta(ge=0, le=1e3)],
        Meta(description="greedy: smallest predicted gain of a move, as a share of what both instances generate."),
    ] = 0.05
    even_ahead: Annotated[
        Annotated[float, Meta(gt=0, le=1)],
        Meta(description="even: by how much of its pool the fullest instance of a host may be ahead of their mean."),
    ] = 0.25
    dgfm_min_blocks: Annotated[
        Annotated[int, Meta(ge=0)],
        Meta(description="Fewest rBlocks for which a cycle of loans is cancelled, per instance; 0 is never."),
    ] = 4
    dispatch: Annotated[
        DispatchName,
        Meta(description="Where requests go: predicted, the shortest time; least-loaded, the fewest; or random."),
    ] = "predicted"


class EngineSettings(Group, frozen=True, kw_only=True):
    """What an engine worker computes, and with what."""

    model: Annotated[str, Meta(min_length=1, description="Directory of a Hugging Face checkpoint, or demo.")]
    dtype: Annotated[
        Literal["auto", "float32", "bfloat16", "float16"],
        Meta(description="Type of weights and KV cache; auto is the checkpoint's."),
    ] = "auto"
    device: Annotated[
        str, Meta(description="What computes: cpu, cuda or cuda:N; auto is the first GPU if there is one.")
    ] = "auto"
    kv_cache_dtype: Annotated[
        KvCacheDtype, Meta(description="Type of the KV cache; auto is dtype. fp8 halves it, on GPUs only.")
    ] = "auto"
    kv_tokens: Annotated[
        PositiveSuffixed | None, Meta(description="KV pool in tokens, rounded down to whole rBlocks.")
    ] = None
    kv_cache_memory_bytes: Annotated[
        PositiveSuffixed | None, Meta(description="KV pool in bytes, in place of --kv-tokens.")
    ] = None
    gpu_memory_utilization: Annotated[
        Annotated[float, Meta(gt=0, le=1)],
        Meta(description="Share of a GPU's memory for weights and KV pool, if the pool has no other size."),
    ] = 0.9
    block_size: Annotated[Annotated[int, Meta(ge=1, le=1024)], Meta(description="Tokens per rBlock.")] = 16
    threads: Annotated[
        Annotated[int, Meta(ge=1, le=4096)] | None,
        Meta(
            description="CPU threads of the engine; auto is one per core it may use, fewer under a container's quota."
        ),
    ] = None
    cpu_kernels: Annotated[
        CpuKernels,
        Meta(description="Backend on a CPU; auto is the best that it can run, torch where none was built."),
    ] = "auto"
    attention_backend: Annotated[
        AttentionBackend,
        Meta(description="Attention on a GPU: triton, or flashinfer or fa3 where installed; auto is triton."),
    ] = "auto"
    microbatches: Annotated[
        Annotated[int, Meta(ge=1, le=2)] | None,
        Meta(description="Parts of a step that asks creditors: one computes while the other waits."),
    ] = None
    cpu_affinity: Annotated[
        str | None,
        Meta(description="Cores to compute on, such as 0-3,6, a thread on each; not set leaves it to the system."),
    ] = None

    def __post_init__(self) -> None:
        check_device(self.device, key="device")
        if self.kv_tokens is not None and self.kv_cache_memory_bytes is not None:
            raise ConfigError("kv_tokens", "kv_tokens and kv_cache_memory_bytes are both set", "give one of them")
        if self.kv_tokens is not None and self.kv_tokens < self.block_size:
            raise ConfigError(
                "kv_tokens",
                f"{self.kv_tokens} is less than one rBlock of {counted(self.block_size, 'token')}",
                "give more, or a smaller --block-size",
            )
        if (self.threads or 0) > len(self.cores) > 0:
            cores = counted(len(self.cores), "core")
            raise ConfigError("threads", f"{self.threads} are more than the {cores} of cpu_affinity")

    @property
    def cores(self) -> tuple[int, ...]:
        """The cores of `cpu_affinity`; none if the system chooses."""
        return () if self.cpu_affinity is None else parse_cores(self.cpu_affinity, key="cpu_affinity")


class DataPlaneSettings(Group, frozen=True, kw_only=True):
    """How a worker and its peers exchange tensors."""

    data_host: Annotated[str, Meta(description="Address to bind for tensors; as --host if empty.")] = ""
    data_port: Annotated[Port, Meta(description="TCP port for tensors; 0 takes a free one.")] = 0
    tensor_transport: Annotated[
        Transport,
        Meta(description="How tensors travel; auto: shared memory or cuda_ipc in a host, else TCP. ucx, nixl: extras."),
    ] = "auto"
    attend_timeout_s: Annotated[
        Seconds,
        Meta(description="Seconds that a step waits for partials at most; far less if a creditor is usually fast."),
    ] = 5.0
    prefill_kv: Annotated[
        PrefillKv,
        Meta(
            description="Prefill over KV of peers: ship its queries, fetch the KV, or auto: what was seen to be faster."
        ),
    ] = "auto"
    fetch_bytes: Annotated[
        PositiveSuffixed,
        Meta(description="Scratch memory for KV that prefill fetches over a socket or to a GPU."),
    ] = 64 * 2**20


LEAST_CHUNK_TOKENS = 8
"""Of a prompt in each step, so that it ends however many decode."""


class ControlSettings(Group, frozen=True, kw_only=True):
    """What an rManager decides by."""

    max_num_seqs: Annotated[Positive, Meta(description="Most sequences in one step.")] = 64
    max_num_batched_tokens: Annotated[PositiveSuffixed, Meta(description="Most tokens in one step.")] = 2048
    max_waiting: Annotated[
        Positive, Meta(description="Most requests that wait; a client gets 503 and Retry-After beyond it.")
    ] = 4096
    mixed_step_ratio: Annotated[
        Annotated[float, Meta(ge=1, le=1e9)],
        Meta(description="How many times as long as without prefill a step of decodes may take with it."),
    ] = 2.0
    max_model_len: Annotated[
        PositiveSuffixed | None,
        Meta(description="Longest prompt + output in tokens; what the checkpoint was made for if not set."),
    ] = None
    heartbeat_s: HeartbeatPeriod = 0.5
    lease_s: Annotated[Seconds, Meta(description="Seconds a lease on lent memory lasts.")] = 4.0
    lease_margin_s: Annotated[
        Seconds, Meta(description="Seconds before its end at which a debtor stops using a lease.")
    ] = 0.5
    lending_cap_blocks: Annotated[
        Annotated[int, Meta(ge=0)] | None,
        Meta(description="Most rBlocks to lend; auto is all but tails and staging."),
    ] = None
    staging_blocks: Annotated[
        Annotated[int, Meta(ge=0)], Meta(description="rBlocks never lent, so that moves have room.")
    ] = 1
    reclaim_after_s: Annotated[
        Seconds, Meta(description="Seconds an own request waits for memory before lent rBlocks are reclaimed for it.")
    ] = 1.0
    reclaim_deadline_s: Annotated[
        Seconds, Meta(description="Seconds a debtor has to give reclaimed rBlocks back, before its lease ends.")
    ] = 2.0
    reclaim_blocks: Annotated[
        Positive,
        Meta(
            description="Most lent rBlocks that are being reclaimed at a time; beyond a limit on serving, those that "
            "debtors have no room for."
        ),
    ] = 64
    max_serve_fraction: Annotated[
        Annotated[float, Meta(gt=0, le=1)],
        Meta(description="Largest share of the time of own steps that serving peers may take; 1 is no limit."),
    ] = 0.5
    max_tpot_s: Annotated[
        Seconds | None,
        Meta(description="Longest time per output token of own requests while memory is lent; no limit if not set."),
    ] = None
    request_timeout_s: Annotated[
        Seconds, Meta(description="Seconds a request waits for memory the live instances do not have, before it fails.")
    ] = 60.0

    def __post_init__(self) -> None:
        if self.lease_margin_s >= self.lease_s:
            raise ConfigError("lease_margin_s", f"must be under lease_s ({self.lease_s}), got {self.lease_margin_s}")
