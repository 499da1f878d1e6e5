"""What an engine worker is started with. It comes in the environment, which other users cannot read."""

from __future__ import annotations

import msgspec

from distkv.config import DataPlaneSettings, EngineSettings, LogSettings

SPEC_VARIABLE = "DISTKV_WORKER_SPEC"


class WorkerSpec(msgspec.Struct, frozen=True, kw_only=True):
    """pipe_fd: the own end of the private channel, inherited. data_address: to listen on for tensors. The
    groups are resolved. profile: file of what this hardware was measured to do, if there is one."""

    pipe_fd: int
    instance_id: str
    incarnation: int
    data_address: str
    insecure: bool
    engine: EngineSettings
    data: DataPlaneSettings
    logging: LogSettings
    profile: str | None = None
