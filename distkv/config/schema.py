"""The settings of each process, with their defaults, bounds and units."""

from __future__ import annotations

import re
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from distkv.config.groups import (
    LEAST_CHUNK_TOKENS,
    AdviceSettings,
    ControlSettings,
    DataPlaneSettings,
    EngineSettings,
    LogSettings,
    MembershipSettings,
    Port,
    Positive,
    PositiveSuffixed,
    Seconds,
)
from distkv.config.values import DEFAULT_GMANAGER, check_bind, parse_address
from distkv.errors import ConfigError
from distkv.types import ToolCallParser

MASKED = "(not shown)"
"""What stands for a secret where a config is printed."""
WILDCARDS = ("0.0.0.0", "::", "*")

GManagers = Annotated[tuple[str, ...], Meta(min_length=1, description="gManager addresses, separated by commas.")]
ValidateState = Annotated[bool, Meta(description="Check every invariant after every event; for debugging.")]
TraceFile = Annotated[
    str | None,
    Meta(description="Record every event and what was decided in this file, one JSON object each line."),
]
ShutdownTimeout = Annotated[
    Annotated[float, Meta(ge=0, le=86400)],
    Meta(description="Seconds to finish running requests after SIGTERM.", extra={"flag": "--shutdown-timeout"}),
]


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What every daemon has. A field that is a group stands for the group's settings."""

    host: Annotated[str, Meta(min_length=1, description="Address to bind; beyond loopback only with --insecure.")] = (
        "127.0.0.1"
    )
    insecure: Annotated[bool, Meta(description="Allow binding beyond loopback without authentication.")] = False
    logging: LogSettings = LogSettings()

    def __post_init__(self) -> None:
        self._check_host()

    def _check_host(self) -> None:
        check_bind(self.host, self.insecure, key="host")


class UpConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of `distkv up` itself; the programs that it starts have their own."""

    instances: Annotated[Positive, Meta(description="How many instances.")] = 2
    kv_tokens: Annotated[
        tuple[PositiveSuffixed, ...],
        Meta(description="KV pool in tokens: of every instance, or one number for each, separated by commas."),
    ] = ()
    gateway: Annotated[bool, Meta(description="Whether to serve HTTP (OpenAI's API).")] = True
    restart: Annotated[
        Annotated[int, Meta(ge=0, le=1000)],
        Meta(description="How often within ten minutes a process that died is started again; 0 is never."),
    ] = 0
    start_timeout_s: Annotated[
        Seconds, Meta(description="Seconds until all must be ready.", extra={"flag": "--start-timeout"})
    ] = 600.0
    log_dir: Annotated[
        str | None,
        Meta(description="Keep the processes' logs in this directory; else they stay only when no instance is left."),
    ] = None


class GManagerConfig(Settings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of `distkv-gmanager`."""

    port: Annotated[Port, Meta(description="TCP port; 0 takes a free one.")] = 7070
    membership: MembershipSettings = MembershipSettings()
    advice: AdviceSettings = AdviceSettings()
    validate_state: ValidateState = False
    trace_file: TraceFile = None


class InstanceConfig(Settings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of `distkv-instance`. `resolve_auto` fills what can be known before the worker starts."""

    engine: EngineSettings
    instance_id: Annotated[
        str, Meta(max_length=128, description="Name in the cluster; made from the host's name if empty.")
    ] = ""
    gmanager: GManagers = (DEFAULT_GMANAGER,)
    port: Annotated[Port, Meta(description="TCP port of the control plane; 0 takes a free one.")] = 0
    data: DataPlaneSettings = DataPlaneSettings()
    control: ControlSettings = ControlSettings()
    shutdown_timeout_s: ShutdownTimeout = 30.0
    validate_state: ValidateState = False
    profile: Annotated[
        str | None, Meta(description="File of distkv profile: what this hardware does with this model, to plan by.")
    ] = None
    trace_file: TraceFile = None

    def __post_init__(self) -> None:
        super().__post_init__()
        control = self.control
        if control.max_num_batched_tokens < control.max_num_seqs + LEAST_CHUNK_TOKENS:
            raise ConfigError(
                "max_num_batched_tokens",
                f"{control.max_num_batched_tokens} leave no room for {LEAST_CHUNK_TOKENS} tokens of a prompt beside "
                f"max_num_seqs ({control.max_num_seqs}) that decode",
                "give more, or a smaller max_num_seqs",
            )
        if not self.instance_id.isprintable():
            raise ConfigError("instance_id", f"expected printable characters, got {self.instance_id!a}")
        if self.data.data_host:
            check_bind(self.data.data_host, self.insecure, key="data_host")
        for key, host in (("host", self.host), ("data_host", self.data.data_host)):
            if host.strip("[]") in WILDCARDS or "%" in host:  # a link-local one names an interface of this host
                raise ConfigError(key, f"peers cannot connect to {host}", "give this host's own address")
        for address in self.gmanager:
            parse_address(address, key="gmanager")


class GatewayConfig(Settings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of `distkv-gateway`."""

    host: Annotated[
        str, Meta(min_length=1, description="Address to bind; beyond loopback only with --api-key or --insecure.")
    ] = "127.0.0.1"
    insecure: Annotated[bool, Meta(description="Allow HTTP beyond loopback without keys.")] = False
    model: Annotated[
        str,
        Meta(min_length=1, description="As of the instances; tokenizer, chat template and generation config are read."),
    ]
    served_model_name: Annotated[
        tuple[str, ...],
        Meta(description="Names of the model in the API, separated by commas; the value of --model if not set."),
    ] = ()
    gmanager: GManagers = (DEFAULT_GMANAGER,)
    wait_for: Annotated[
        Positive,
        Meta(
            description="Instances that must be ready at once before the first request is served; distkv up waits for "
            "all of its own."
        ),
    ] = 1
    port: Annotated[Port, Meta(description="TCP port of HTTP; 0 takes a free one.")] = 8000
    api_key: Annotated[
        tuple[str, ...], Meta(description="Keys of which requests must bear one, separated by commas; none if not set.")
    ] = ()
    allowed_origins: Annotated[
        tuple[str, ...],
        Meta(
            description="Origins of web pages whose scripts may use the API, separated by commas, or *; pages of the "
            "browser's own machine always may."
        ),
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
    tool_call_parser: Annotated[
        ToolCallParser,
        Meta(description="How the model writes tool calls; auto is what its chat template shows, none refuses tools."),
    ] = "auto"
    max_model_len: Annotated[
        PositiveSuffixed | None,
        Meta(description="Longest prompt + output in tokens, where that is less than the instances take."),
    ] = None
    max_body_bytes: Annotated[PositiveSuffixed, Meta(description="Largest request body in bytes.")] = 32 * 2**20
    max_concurrent_requests: Annotated[
        Positive, Meta(description="Requests being served at once; more are refused with 429.")
    ] = 1024
    request_timeout_s: Annotated[
        Seconds, Meta(description="Seconds a request may take, waiting included, before it ends with an error.")
    ] = 600.0
    drain_wait_s: Annotated[
        Annotated[float, Meta(ge=0, le=3600)],
        Meta(description="Seconds after SIGTERM in which /health already fails and requests are still taken."),
    ] = 1.0
    shutdown_timeout_s: ShutdownTimeout = 30.0

    def _check_host(self) -> None:
        hint = "give it keys with --api-key, or use --insecure on a network where every machine is trusted"
        check_bind(self.host, self.insecure or bool(self.api_key), key="host", hint=hint)

    def __post_init__(self) -> None:
        super().__post_init__()
        if MASKED in self.api_key:
            raise ConfigError("api_key", "has no keys: --print-config masks them", "give them in DISTKV_API_KEY")
        if not all(key and all("!" <= character <= "~" for character in key) for key in self.api_key):
            # The keys themselves must reach no terminal and no log.
            problem = "expected keys of printable ASCII without spaces, at least one character each"
            raise ConfigError("api_key", problem, "leave it unset to serve without keys")
        for origin in self.allowed_origins:
            if origin != "*" and re.fullmatch(r"https?://[^/\s]+", origin) is None:
                raise ConfigError("allowed_origins", f"expected * or origins such as https://host:3000, got {origin!r}")
        if not all(self.served_model_name):
            raise ConfigError("served_model_name", "has an empty name")
        if (self.ssl_certfile is None) != (self.ssl_keyfile is None):
            missing = "ssl_keyfile" if self.ssl_keyfile is None else "ssl_certfile"
            raise ConfigError(missing, "is not set", "TLS needs both ssl_certfile and ssl_keyfile")
        for address in self.gmanager:
            parse_address(address, key="gmanager")
