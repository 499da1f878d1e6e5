"""Who runs, and why others do not."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from distkv.bench.baselines.checkpoints import MODELS
from distkv.bench.baselines.process import BaselineFailed
from distkv.bench.pooling import contenders
from distkv.bench.pooling.contenders import NAMES, Given, default_policy, known_policies, start


class Made:
    """In place of what would start processes."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        self.settings = {"arguments": arguments[1:], "named": named}
        self.closed = False

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Given:
    monkeypatch.setattr(contenders, "Daemons", Made)
    monkeypatch.setattr(contenders, "VllmServers", Made)
    return Given(MODELS["tiny"], tmp_path, 2, 640, 400, (0, 1), tmp_path / "profile.json", tmp_path)


def test_each_contender_has_the_same_memory(given: Given) -> None:
    with ExitStack() as stack:
        running, left_out = start(NAMES, given, stack, lambda text: None)
    made = {name: one.settings for name, one in running.items()}
    profile = given.profile
    assert made["off"] == {"arguments": (2, 640, 1), "named": {"policy": "none", "profile": profile}}
    assert made["contract"] == {"arguments": (2, 640, 1), "named": {"policy": "contract", "profile": profile}}
    assert made["big"] == {"arguments": (1, 1280, 2), "named": {}}
    assert left_out["vllm"].startswith("it is not installed: python -m distkv.bench.baselines.setup vllm")
    assert all(one.closed for one in running.values())


def test_a_policy_that_is_not_known_is_left_out_with_the_reason(given: Given, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contenders, "known_policies", lambda: ("none", "contract"))
    with ExitStack() as stack:
        running, left_out = start(("off", "greedy"), given, stack, lambda text: None)
    assert list(running) == ["off"]
    assert left_out["greedy"] == "gManagers know no policy greedy"
    assert left_out["big"] == "it was not asked for"
    assert default_policy() in known_policies()


def test_instances_of_vllm_get_the_bytes_of_a_pool_each(given: Given, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contenders, "python_of", lambda name, venvs: Path("python"))
    with ExitStack() as stack:
        running, _ = start(("vllm",), given, stack, lambda text: None)
    named = running["vllm"].settings["named"]
    assert named["kv_tokens"] == 640 and named["token_bytes"] == MODELS["tiny"].kv_bytes_per_token
    assert named["cores"] == [0, 1] and named["longest"] == 400


def test_who_does_not_start_is_left_out_with_what_it_said(given: Given, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*arguments: Any, **named: Any) -> None:
        raise BaselineFailed("it ended: out of memory")

    monkeypatch.setattr(contenders, "python_of", lambda name, venvs: Path("python"))
    monkeypatch.setattr(contenders, "VllmServers", fails)
    with ExitStack() as stack:
        assert start(("vllm",), given, stack, lambda text: None)[1]["vllm"] == "it ended: out of memory"
