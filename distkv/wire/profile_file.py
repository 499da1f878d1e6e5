"""The file that `distkv profile` writes and instances read: a profile, and what it was compared with."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import msgspec

from distkv.errors import ConfigError
from distkv.wire.messages.profile import Profile


class Predicted(msgspec.Struct, frozen=True, kw_only=True):
    """One point at which a prediction was compared with what came (001, Fig. 7). Tokens are of one step."""

    batch: int  #: sequences of the debtor
    context_tokens: int  #: behind all of them
    remote_blocks: int  #: rBlocks that lay on the creditor
    creditor_batch: int  #: sequences that the creditor decoded itself
    debtor: tuple[float, float]  #: tokens/s of the debtor: predicted, measured
    creditor: tuple[float, float] | None = None  #: of the creditor, where it decoded


class ProfileFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What `distkv profile` writes. points: what the profile was compared with."""

    format: Literal[1] = 1
    profile: Profile
    points: tuple[Predicted, ...] = ()


def load_profile(path: Path) -> Profile:
    """The profile in a file. Raises ConfigError naming `profile` and what is wrong with it."""
    hint = "distkv profile writes one"
    try:
        data = path.read_bytes()
    except OSError as error:
        problem, named = f"cannot read {path}: {error.strerror}", "names such as a100-llama2-7b are for distkv sim"
        raise ConfigError("profile", problem, f"{hint}; {named}") from None
    try:
        raw = msgspec.json.decode(data)
        file = msgspec.convert(raw, ProfileFile)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise ConfigError("profile", f"{path} is no profile: {error}", hint) from None
    if unknown := _unknown(raw, msgspec.to_builtins(file)):
        raise ConfigError("profile", f"{path} is no profile: it has {unknown}, which profiles do not have", hint)
    return file.profile


def save_profile(file: ProfileFile, path: Path) -> None:
    """Write it as indented JSON, whole or not at all. Raises ConfigError naming `output`."""
    part = path.with_name(f"{path.name}.part")
    try:
        part.write_bytes(msgspec.json.format(msgspec.json.encode(file), indent=2) + b"\n")
        part.replace(path)
    except OSError as error:
        raise ConfigError("output", f"cannot write {path}: {error.strerror}") from None


def _unknown(raw: object, read: object, path: str = "") -> str:
    """The first key of a file that was not read; empty if all were."""
    if isinstance(raw, dict) and isinstance(read, dict):
        for key, value in raw.items():
            here = f"{path}.{key}" if path else str(key)
            if key not in read:
                return here
            if found := _unknown(value, read[key], here):
                return found
    return ""
