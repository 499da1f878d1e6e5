"""How single values are written: numbers with suffixes, addresses."""

from __future__ import annotations

import ipaddress
import os
import re
from collections.abc import Iterable, Sequence
from decimal import Decimal
from pathlib import Path

from distkv.errors import ConfigError
from distkv.types import is_utf8
from distkv.wording import plural

DEFAULT_GMANAGER = "tcp://127.0.0.1:7070"


def is_loopback(host: str) -> bool:
    """Whether only processes of this machine can reach `host`. Other names than localhost, and wildcards, are not."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]").partition("%")[0]).is_loopback
    except ValueError:
        return False


def check_bind(
    host: str,
    insecure: bool,
    *,
    key: str = "address",
    hint: str = "use a loopback address, or --insecure on a network where every machine is trusted",
) -> None:
    """Refuse to listen beyond loopback unless the user said so, and what is no host, or one with a port. Raises
    ConfigError naming `key`."""
    if re.fullmatch(r"[^:\[\]]+:\d+", host):
        raise ConfigError(key, f"expected a name or an address without a port, got {host!r}")
    try:
        host.encode("idna")
    except UnicodeError:
        raise ConfigError(key, f"expected a name or an address, got {host!r}") from None
    if not insecure and not is_loopback(host):
        raise ConfigError(
            key,
            f"{host} can be reached from other machines, and connections are not authenticated",
            hint,
        )


def parse_address(text: str, *, key: str = "address") -> str:
    """`tcp://host:port` from `tcp://host:port` or `host:port`. Raises ConfigError naming `key`."""
    found = re.fullmatch(r"(?:tcp://)?(\[[0-9A-Fa-f:.]+(?:%[^\s:/\[\]%]+)?\]|[^\s:/\[\]]+):(\d{1,5})", text.strip())
    if found is None or not 0 < int(found[2]) <= 65535:
        raise ConfigError(key, f"expected an address such as {DEFAULT_GMANAGER}, got {text!r}")
    return f"tcp://{found[1]}:{int(found[2])}"


DEMO_MODEL = "demo"
_SHIPPED = {DEMO_MODEL: Path(__file__).resolve().parent.parent / "demo" / "checkpoint"}


def model_dir(model: str) -> Path:
    """The directory of a model, which may be the name of the one that comes with distkv; "./demo" is a directory.

    Raises ConfigError unless it is a directory with a config.json: sooner and clearer than its first reader.
    """
    if not is_utf8(model):
        raise ConfigError("model", f"the name {model!r} is no text in UTF-8", "give the directory another name")
    path = _SHIPPED.get(model) or Path(model).expanduser()
    if not path.is_dir():
        raise ConfigError(
            "model",
            f"there is no directory {model}",
            f"models are not downloaded; give a local checkpoint, or {DEMO_MODEL} for the one that comes with distkv",
        )
    if not (path / "config.json").is_file():
        raise ConfigError("model", f"{model} has no config.json", "give a Hugging Face checkpoint directory")
    return path


def parse_cores(text: str, *, key: str) -> tuple[int, ...]:
    """The cores that a list such as "0-3,6" names, in its order. Raises ConfigError naming `key`."""
    cores: list[int] = []
    for part in text.split(","):
        found = re.fullmatch(r"(\d{1,4})(?:-(\d{1,4}))?", part.strip())
        first, last = (int(found[1]), int(found[2] or found[1])) if found else (1, 0)
        if first > last:
            raise ConfigError(key, f"expected cores such as 0-3,6, got {text!r}")
        cores.extend(range(first, last + 1))
    if len(set(cores)) < len(cores):
        raise ConfigError(key, f"{text} names a core twice")
    return tuple(cores)


def check_cores_are_here(cores: Iterable[int], *, key: str) -> None:
    """Raises ConfigError naming `key` for cores that this process may not use."""
    usable = os.sched_getaffinity(0)
    if missing := sorted(set(cores) - usable):
        named = f"{plural(len(missing), 'core')} {as_ranges(missing)}"
        raise ConfigError(key, f"this process may not use {named}", f"it may use {as_ranges(sorted(usable))}")


def as_ranges(numbers: Sequence[int]) -> str:
    """Ascending numbers as people write them: "0-3, 6"."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1][1:] = [number]
        else:
            runs.append([number])
    return ", ".join("-".join(map(str, run)) for run in runs)


def check_device(text: str, *, key: str) -> None:
    """Raises ConfigError naming `key` unless it names a device; whether that is here its user finds out."""
    if re.fullmatch(r"auto|cpu|cuda(:\d{1,3})?", text) is None:
        raise ConfigError(key, f"expected auto, cpu, cuda or a GPU's number such as cuda:1, got {text!r}")


def parse_count(text: str) -> int:
    """A whole number with an optional suffix, as in vLLM: K, M, G, T are powers of 1024; k, m, g, t of 1000.

    `4G` is 4·1024³, `1.5K` is 1536. Raises ValueError.
    """
    found = re.fullmatch(r"\s*(\d[\d_]*(?:\.\d+)?)\s*([kmgtKMGT]?)\s*", text)
    if found is None:
        raise ValueError(f"not a number: {text!r}")
    power = "kmgt".find(found[2].lower()) + 1 if found[2] else 0
    value = Decimal(found[1]) if "." in found[1] else int(found[1])
    scaled = value * (1024 if found[2].isupper() else 1000) ** power
    if scaled != int(scaled):
        raise ValueError(f"not a whole number: {text!r}")
    return int(scaled)
