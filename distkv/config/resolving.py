"""What "auto" and empty settings are on this machine."""

from __future__ import annotations

import re
import secrets
import socket

from msgspec.structs import replace

from distkv.config.schema import InstanceConfig
from distkv.config.values import check_cores_are_here, model_dir, parse_address
from distkv.control_groups import usable_threads


def resolve_auto(config: InstanceConfig) -> InstanceConfig:
    """A new config with model, instance_id, data_host, threads and gManager addresses as they are used.

    Raises ConfigError for a model or cores that are not here.
    """
    engine = config.engine
    check_cores_are_here(engine.cores, key="cpu_affinity")
    host = re.sub(r"[^A-Za-z0-9_.-]", "-", socket.gethostname())[:64] or "instance"
    threads = engine.threads or usable_threads(len(engine.cores))
    return replace(
        config,
        engine=replace(engine, model=str(model_dir(engine.model)), threads=threads),
        instance_id=config.instance_id or f"{host}-{secrets.token_hex(3)}",
        gmanager=tuple(parse_address(address, key="gmanager") for address in config.gmanager),
        data=replace(config.data, data_host=config.data.data_host or config.host),
    )
