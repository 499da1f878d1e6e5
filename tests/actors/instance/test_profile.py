"""The profile that an instance is started with."""

from __future__ import annotations

from pathlib import Path

import pytest

from distkv.actors.instance.process import profile_of, settings_of
from distkv.config import InstanceConfig, build
from distkv.errors import ConfigError
from distkv.wire.messages.from_worker import WorkerReady
from distkv.wire.profile_file import ProfileFile, save_profile
from tests.control.parts import make_member
from tests.wire.golden.values import PROFILE, SERVES


def ready(serves: str) -> WorkerReady:
    return WorkerReady(
        pid=1, compat="", data=make_member("a").data, block_tokens=4, num_slots=9, eos_token_ids=(), vocab_size=1,
        max_positions=4096, serves=serves,
    )  # fmt: skip


def test_it_is_read_from_its_file_and_told(tmp_path: Path) -> None:
    path = tmp_path / "profile.json"
    save_profile(ProfileFile(profile=PROFILE), path)
    config = build(InstanceConfig, {"model": "demo", "instance_id": "i0", "profile": str(path)})
    assert profile_of(config) == PROFILE
    assert settings_of(config, 1, ready(SERVES), PROFILE).profile == PROFILE
    assert profile_of(build(InstanceConfig, {"model": "demo"})) is None


def test_one_of_another_model_is_refused() -> None:
    config = build(InstanceConfig, {"model": "demo", "instance_id": "i0", "profile": "p.json"})
    other = SERVES.replace("bfloat16", "float32")
    with pytest.raises(ConfigError, match=r"profile: p.json was measured of dtype bfloat16 \(not float32\)"):
        settings_of(config, 1, ready(other), PROFILE)
