"""Instances of a local cluster on the GPUs that there are."""

from __future__ import annotations

from pathlib import Path

import pytest

from distkv.client.local import gpus
from distkv.client.local.cluster_settings import ClusterSettings
from distkv.errors import ConfigError


@pytest.fixture
def with_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpus, "version", lambda name: "2.11.0+cu130")
    monkeypatch.setattr(gpus, "find_spec", lambda name: name)


def test_gpus_are_counted_where_torch_can_use_them(
    tmp_path: Path, with_cuda: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("nvidia0", "nvidia1", "nvidia12", "nvidiactl", "nvidia-uvm"):
        (tmp_path / name).touch()
    assert gpus.count_gpus(tmp_path, {}) == 3
    assert gpus.count_gpus(tmp_path, {"CUDA_VISIBLE_DEVICES": "2,0"}) == 2
    assert gpus.count_gpus(tmp_path, {"CUDA_VISIBLE_DEVICES": ""}) == 0
    monkeypatch.setattr(gpus, "version", lambda name: "2.13.0+cpu")
    assert gpus.count_gpus(tmp_path, {}) == 0


@pytest.mark.parametrize(
    ("wanted", "count", "dealt"),
    [
        (["auto", "auto", "cuda"], 2, ["cuda:0", "cuda:1", "cuda:0"]),
        (["auto", "cpu", "auto"], 2, ["cuda:0", "cpu", "cuda:1"]),
        (["cuda:1", "cuda:1"], 2, ["cuda:1", "cuda:1"]),
        (["auto", "auto"], 0, ["auto", "auto"]),
        (["auto"], 2, ["auto"]),
    ],
)
def test_they_are_dealt_in_turn(wanted: list[str], count: int, dealt: list[str]) -> None:
    assert gpus.deal(wanted, count) == dealt


def test_instances_of_a_cluster_get_one_each(with_cuda: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,7")
    settings = ClusterSettings.of("demo", 2, None)
    assert [one["device"] for one in settings.instances] == ["cuda:0", "cuda:1"]
    with pytest.raises(ConfigError, match="i0, i2 share cuda:0 and have no pools of a given size"):
        ClusterSettings.of("demo", 3, None)
    settings = ClusterSettings.of("demo", 3, 4096)
    assert [one["device"] for one in settings.instances] == ["cuda:0", "cuda:1", "cuda:0"]
    settings = ClusterSettings.of("demo", 2, None, device="cpu")
    assert [one["device"] for one in settings.instances] == ["cpu", "cpu"]
