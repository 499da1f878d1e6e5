"""The settings of each process, with their defaults, bounds and units."""

from __future__ import annotations

import os
import re
import secrets
import socket
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from distkv.config.values import DEFAULT_GMANAGER, check_bind, check_device, model_dir, parse_address, parse_cores
from distkv.errors import ConfigError
from distkv.types import CpuKernels, KvCacheDtype, LogLevel, Role, Transport

_SUFFIXED = {"suffixed": True}
WILDCARDS = ("0.0.0.0", "::", "*")

Port = Annotated[int, Meta(ge=0, le=65535)]
Positive = Annotated[int, Meta(ge=1)]
PositiveSuffixed = Annotated[int, Meta(ge=1, extra=_SUFFIXED)]
Seconds = Annotated[float, Meta(gt=0, le=86400)]
GManagers = Annotated[tuple[str, ...], Meta(min_length=1, description="gManager addresses, separated by commas.")]
ShutdownTimeout = Annotated[
    Annotated[float, Meta(ge=0, le=86400)],
    Meta(description="Seconds to finish running requests after SIGTERM.", extra={"flag": "--shutdown-timeout"}),
]


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What every daemon has."""

    host: Annotated[str, Meta(min_length=1, description="Address to bind; beyond loopback only with --insecure.")] = (
        "127.0.0.1"
    )
    insecure: Annotated[bool, Meta(description="Allow binding beyond loopback without authentication.")] = False
    log_level: Annotated[LogLevel, Meta(description="Least severe log line that is written.")] = "info"
    log_json: Annotated[
        bool | None, Meta(description="Write logs as JSON, one object per line; auto unless on a terminal.")
    ] = None

    def __post_init__(self) -> None:
        self._check_host()

    def _check_host(self) -> None:
        check_bind(self.host, self.insecure, key="host")


class GManagerConfig(Settings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of `distkv-gmanager`."""

    port: Annotated[Port, Meta(description="TCP port; 0 takes a free one.")] = 7070
    heartbeat_s: Annotated[Seconds, Meta(description="Seconds between heartbeats.")] = 0.5
    dead_after_s: Annotated[Seconds, Meta(description="Seconds without a heartbeat until an instance is dead.")] = 4.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.dead_after_s <= self.heartbeat_s:
            raise ConfigError("dead_after_s", f"must exceed heartbeat_s ({self.heartbeat_s}), got {self.dead_after_s}")


class InstanceConfig(Settings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of `distkv-instance`. `resolve_auto` fills what can be known before the worker starts."""

    model: Annotated[str, Meta(min_length=1, description="Directory of a Hugging Face checkpoint, or demo.")]
    instance_id: Annotated[
        str, Meta(max_length=128, description="Name in the cluster; made from the host's name if empty.")
    ] = ""
    gmanager: GManagers = (DEFAULT_GMANAGER,)
    port: Annotated[Port, Meta(description="TCP port of the control plane; 0 takes a free one.")] = 0
    data_host: Annotated[str, Meta(description="Address to bind for tensors; as --host if empty.")] = ""
    data_port: Annotated[Port, Meta(description="TCP port for tensors; 0 takes a free one.")] = 0
    role: Annotated[Role, Meta(description="Shown in the status; every instance serves prefill and decode alike.")] = (
        "mixed"
    )
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
    max_num_seqs: Annotated[Positive, Meta(description="Most sequences in one step.")] = 64
    max_num_batched_tokens: Annotated[PositiveSuffixed, Meta(description="Most tokens in one step.")] = 2048
    max_model_len: Annotated[
        PositiveSuffixed | None, Meta(description="Longest prompt + output in tokens; no limit but memory if not set.")
    ] = None
    threads: Annotated[
        Positive | None,
        Meta(description="CPU threads of the engine; auto is one per core it may use."),
    ] = None
    cpu_kernels: Annotated[
        CpuKernels,
        Meta(description="Backend on a CPU; auto is the best that it can run, torch where none was built."),
    ] = "auto"
    microbatches: Annotated[
        Annotated[int, Meta(ge=1, le=2)] | None,
        Meta(description="Parts of a step that asks creditors: one computes while the other waits."),
    ] = None
    cpu_affinity: Annotated[
        str | None,
        Meta(description="Cores to compute on, such as 0-3,6, a thread on each; not set leaves it to the system."),
    ] = None
    heartbeat_s: Annotated[Seconds, Meta(description="Seconds between heartbeats.")] = 0.5
    lease_s: Annotated[Seconds, Meta(description="Seconds a lease on lent memory lasts.")] = 4.0
    lease_margin_s: Annotated[
        Seconds, Meta(description="Seconds before its end at which a debtor stops using a lease.")
    ] = 0.5
    attend_timeout_s: Annotated[Seconds, Meta(description="Seconds to wait for a creditor's partials.")] = 5.0
    lending_cap_blocks: Annotated[
        Annotated[int, Meta(ge=0)] | None,
        Meta(description="Most rBlocks to lend; auto is all but tails and staging."),
    ] = None
    staging_blocks: Annotated[
        Annotated[int, Meta(ge=0)], Meta(description="rBlocks never lent, so that moves have room.")
    ] = 1
    request_timeout_s: Annotated[
        Seconds, Meta(description="Seconds a request waits for memory the live instances do not have, before it fails.")
    ] = 60.0
    shutdown_timeout_s: ShutdownTimeout = 30.0
    tensor_transport: Annotated[
        Transport,
        Meta(description="How tensors travel; auto is shared memory on one host, else TCP."),
    ] = "auto"
    validate_state: Annotated[
        bool, Meta(description="Check every invariant of memory after every event; for debugging.")
    ] = False
    trace_file: Annotated[str | None, Meta(description="Write trace events to this file, one JSON each line.")] = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.data_host:
            check_bind(self.data_host, self.insecure, key="data_host")
        for key in ("host", "data_host"):
            if getattr(self, key).strip("[]") in WILDCARDS:
                raise ConfigError(key, f"peers cannot connect to {getattr(self, key)}", "give this host's own address")
        check_device(self.device, key="device")
        if self.kv_tokens is not None and self.kv_cache_memory_bytes is not None:
            raise ConfigError("kv_tokens", "kv_tokens and kv_cache_memory_bytes are both set", "give one of them")
        if self.kv_tokens is not None and self.kv_tokens < self.block_size:
            raise ConfigError(
                "kv_tokens",
                f"{self.kv_tokens} tokens are less than one rBlock of {self.block_size}",
                "give more, or a smaller --block-size",
            )
        if self.lease_margin_s >= self.lease_s:
            raise ConfigError("lease_margin_s", f"must be under lease_s ({self.lease_s}), got {self.lease_margin_s}")
        if (self.threads or 0) > len(self.cores) > 0:
            raise ConfigError("threads", f"{self.threads} are more than the {len(self.cores)} cores of cpu_affinity")
        for address in self.gmanager:
            parse_address(address, key="gmanager")

    @property
    def cores(self) -> tuple[int, ...]:
        """The cores of `cpu_affinity`; none if the system chooses."""
        return () if self.cpu_affinity is None else parse_cores(self.cpu_affinity, key="cpu_affinity")


class GatewayConfig(Settings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of `distkv-gateway`."""

    model: Annotated[
        str,
        Meta(min_length=1, description="As of the instances; tokenizer, chat template and generation config are read."),
    ]
    served_model_name: Annotated[
        tuple[str, ...],
        Meta(description="Names of the model in the API, separated by commas; the value of --model if not set."),
    ] = ()
    gmanager: GManagers = (DEFAULT_GMANAGER,)
    port: Annotated[Port, Meta(description="TCP port of HTTP; 0 takes a free one.")] = 8000
    api_key: Annotated[
        tuple[str, ...], Meta(description="Keys of which requests must bear one, separated by commas; none if not set.")
    ] = ()
    ssl_certfile: Annotated[str | None, Meta(description="TLS certificate chain (PEM); serves HTTPS.")] = None
    ssl_keyfile: Annotated[str | None, Meta(description="Key of the TLS certificate (PEM).")] = None
    generation_config: Annotated[
        Literal["auto", "none"],
        Meta(description="Where sampling defaults come from; auto is the model's generation_config.json."),
    ] = "auto"
    chat_template: Annotated[
        str | None, Meta(description="File with a Jinja chat template, in place of the model's own.")
    ] = None
    max_model_len: Annotated[
        PositiveSuffixed | None,
        Meta(description="Longest prompt + output in tokens; as the instances'. What the cluster can hold if not set."),
    ] = None
    max_body_bytes: Annotated[PositiveSuffixed, Meta(description="Largest request body in bytes.")] = 32 * 2**20
    max_concurrent_requests: Annotated[
        Positive, Meta(description="Requests being served at once; more are refused with 429.")
    ] = 1024
    request_timeout_s: Annotated[
        Seconds, Meta(description="Seconds a request may wait for memory before it fails with 503.")
    ] = 60.0
    drain_wait_s: Annotated[
        Annotated[float, Meta(ge=0, le=3600)],
        Meta(description="Seconds after SIGTERM in which /health already fails and requests are still taken."),
    ] = 1.0
    shutdown_timeout_s: ShutdownTimeout = 30.0

    def _check_host(self) -> None:
        check_bind(self.host, self.insecure or bool(self.api_key), key="host")

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.ssl_certfile is None) != (self.ssl_keyfile is None):
            missing = "ssl_keyfile" if self.ssl_keyfile is None else "ssl_certfile"
            raise ConfigError(missing, "is not set", "TLS needs both ssl_certfile and ssl_keyfile")
        for address in self.gmanager:
            parse_address(address, key="gmanager")


def resolve_auto(config: InstanceConfig) -> InstanceConfig:
    """A new config with model, instance_id, data_host, threads and gManager addresses as they are used.

    Raises ConfigError for a model or cores that are not here.
    """
    usable = os.sched_getaffinity(0)
    if missing := [str(core) for core in config.cores if core not in usable]:
        raise ConfigError(
            "cpu_affinity",
            f"this process may not use core {', '.join(missing)}",
            f"it may use {', '.join(map(str, sorted(usable)))}",
        )
    host = re.sub(r"[^A-Za-z0-9_.-]", "-", socket.gethostname())[:64] or "instance"
    return msgspec.structs.replace(
        config,
        model=str(model_dir(config.model)),
        instance_id=config.instance_id or f"{host}-{secrets.token_hex(3)}",
        data_host=config.data_host or config.host,
        threads=config.threads or len(config.cores or usable),
        gmanager=tuple(parse_address(address, key="gmanager") for address in config.gmanager),
    )
