from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings

from distkv.errors import ConfigError
from distkv.wire.messages.profile import CURVES, Point, Profile
from distkv.wire.profile_file import Predicted, ProfileFile, load_profile, save_profile
from tests.wire.golden.values import PROFILE, SERVES
from tests.wire.strategies import messages_of

POINT = Predicted(batch=4, context_tokens=4096, remote_blocks=8, creditor_batch=0, debtor=(41.0, 40.5))


def written(path: Path, **changes: Any) -> Path:
    """A file with parts of its profile replaced."""
    content = msgspec.to_builtins(ProfileFile(profile=PROFILE))
    content["profile"] |= changes
    path.write_bytes(msgspec.json.encode(content))
    return path


def test_what_was_written_is_read(tmp_path: Path) -> None:
    path = tmp_path / "profile.json"
    save_profile(ProfileFile(profile=PROFILE, points=(POINT,)), path)
    assert load_profile(path) == PROFILE
    assert [one.name for one in tmp_path.iterdir()] == ["profile.json"]
    assert path.read_text(encoding="utf-8").startswith('{\n  "format": 1')


@settings(deadline=None)
@given(messages_of(Profile))
def test_any_profile_survives_its_file(profile: Profile) -> None:
    file = ProfileFile(profile=profile)
    assert msgspec.json.decode(msgspec.json.encode(file), type=ProfileFile) == file


def test_steps_may_fall(tmp_path: Path) -> None:
    fallen = [[1, 0.2], [2, 0.3], [4, 0.1]]
    profile = load_profile(written(tmp_path / "falls.json", step=fallen, remote_step=fallen))
    assert profile.step == profile.remote_step == (Point(1, 0.2), Point(2, 0.3), Point(4, 0.1))


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"step": [[1, 0.1], [1, 0.2]]}, "the sizes of step do not ascend: 1, 1"),
        ({"attention": [[8, 0.2], [16, 0.1]]}, "attention falls from 0.2 to 0.1 s at 16"),
        ({"serving": [[8, 0.0]]}, "serving is 0 everywhere"),
        ({"step": [[1, 0.0], [8, 0.1]]}, "step takes no time for 1"),
        ({"step": [[1, 0.1], [2, 0.0], [8, 0.1]]}, "step takes no time for 2"),
        ({"remote_step": [[1, 0.1], [8, 0.0]]}, "remote_step is 0 everywhere"),
        ({"step": []}, r"length >= 1 - at `\$.profile.step`"),
        ({"step": [[1, -0.1]]}, "`float` >= 0"),
        ({"step": [[0, 0.1]]}, "`int` >= 1"),
        ({"links": {}}, r"length >= 1 - at `\$.profile.links`"),
        ({"links": {"wire": {}}}, "Invalid enum value 'wire'"),
        ({"layers": "12"}, "Expected `int`, got `str`"),
        ({"stepp": []}, "it has profile.stepp, which profiles do not have"),
    ],
)
def test_a_bad_profile_is_refused_in_words(tmp_path: Path, changes: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError, match=rf"profile: .* is no profile: .*{problem}.*distkv profile writes one"):
        load_profile(written(tmp_path / "bad.json", **changes))


@pytest.mark.parametrize("content", [b"", b"[]", b"{}", b"\xff", b'{"format": 2}', b"[" * 100_000])
def test_another_file_is_refused_in_words(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "other.json"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=r"profile: .* is no profile: "):
        load_profile(path)


def test_a_file_that_cannot_be_read_or_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"profile: cannot read .*none.json: No such file.*distkv profile writes one"):
        load_profile(tmp_path / "none.json")
    with pytest.raises(ConfigError, match=r"output: cannot write .*profile.json: No such file"):
        save_profile(ProfileFile(profile=PROFILE), tmp_path / "none" / "profile.json")


def test_a_profile_of_another_model_says_so() -> None:
    assert not PROFILE.differences(SERVES)
    assert not PROFILE.differences("")
    other = SERVES.replace("qwen3/1f2e3d4c", "llama/00000000").replace("bfloat16", "float32")
    assert PROFILE.differences(other) == "model qwen3/1f2e3d4c (not llama/00000000), dtype bfloat16 (not float32)"
    # Times do not depend on what the weights are.
    assert not PROFILE.differences(SERVES.replace("00aa11bb", "11bb22cc"))


def test_curves_are_fields() -> None:
    assert set(CURVES) <= set(Profile.__struct_fields__)
    assert PROFILE.step[0] == Point(1, 0.0625)
