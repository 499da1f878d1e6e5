"""What a worker believes of shipping and fetching before it measured either: a profile, layer by layer."""

from __future__ import annotations

import pathlib
from dataclasses import dataclass

import pytest

from distkv.actors.worker.links.fetch_model import cost_models, cost_models_of
from distkv.control.performance.model import PerformanceModel
from distkv.engine.attention.fetch.costs import Costs, Way, Work
from distkv.errors import ConfigError
from tests.control.performance.profiles import make_profile

BLOCK = 16
PROFILE = make_profile()
MODEL = PerformanceModel(PROFILE)
WORK = Work(256, 64)


@dataclass(frozen=True)
class Path:
    """A LinkPath."""

    within_host: bool
    mapped: memoryview | None = None


MAPPED, NETWORK = Path(within_host=True, mapped=memoryview(b"pool")), Path(within_host=False)


@pytest.mark.parametrize(
    ("path", "link", "read"), [(MAPPED, "host", 0), (Path(within_host=True), "host", 1024), (NETWORK, "network", 1024)]
)
def test_seconds_of_a_layer(path: Path, link: str, read: int) -> None:
    layer_s = cost_models(PROFILE, BLOCK)(path)
    ship_s = MODEL.ship_s(256, 1024, link=link)  # type: ignore[arg-type]
    fetch_s = MODEL.fetch_s(256, 1024, fetched_tokens=read, link=link)  # type: ignore[arg-type]
    assert layer_s("ship", WORK) == pytest.approx(ship_s / PROFILE.layers)
    assert layer_s("fetch", WORK) == pytest.approx(fetch_s / PROFILE.layers)


def test_shipping_hides_behind_own_attention_but_for_what_carries_it() -> None:
    layer_s = cost_models(PROFILE, BLOCK)(MAPPED)
    own = 104  # rBlocks, of which the chunk itself is 16
    hidden_s = MODEL.ship_s(256, 1024, local_tokens=own * BLOCK - 128)
    assert 0 < hidden_s < MODEL.fetch_s(256, 1024, fetched_tokens=0) < MODEL.ship_s(256, 1024)
    assert layer_s("ship", Work(256, 64, own)) == pytest.approx(hidden_s / PROFILE.layers)
    costs = Costs(layer_s)
    assert costs.choose(Work(256, 64, own)) == "ship" and Costs(layer_s).choose(WORK) == "fetch"
    assert layer_s("ship", Work(256, 64, 10**6)) == pytest.approx(MODEL.carry_s(256) / PROFILE.layers)


@pytest.mark.parametrize("path", [MAPPED, NETWORK])
@pytest.mark.parametrize("rows", [2, 64, 512])
def test_the_first_choice_is_the_models(path: Path, rows: int) -> None:
    layer_s, work = cost_models(PROFILE, BLOCK)(path), Work(rows, 64)
    costs = Costs(layer_s)
    costs.read(10**6, 1e-9)
    took: dict[Way, float] = {way: layer_s(way, work) for way in ("ship", "fetch")}
    for way, seconds in took.items():
        costs.took(way, work, seconds)
    assert costs.choose(work) == min(took, key=lambda way: took[way])


def test_without_a_profile_there_is_none_and_a_bad_one_is_refused(tmp_path: pathlib.Path) -> None:
    assert cost_models_of(None, BLOCK) is None
    with pytest.raises(ConfigError, match="profile"):
        cost_models_of(str(tmp_path / "missing.json"), BLOCK)
