"""Clusters whose instances are divided, of PROFILE's round numbers."""

from __future__ import annotations

from functools import partial

from distkv.sim.baselines.cluster import BaselineCluster
from distkv.sim.baselines.disaggregated.pulling import Pulling
from distkv.sim.baselines.disaggregated.pushing import Pushing
from tests.sim.timed.parts import spec

Place = type[Pulling] | type[Pushing]


def divided(place: Place, prefills: int, **fields: object) -> BaselineCluster:
    return BaselineCluster(spec(policy="prefill-decode", **fields), partial(place, prefills))


def quiet(now_s: float, ended: int, of: int) -> None:
    pass
