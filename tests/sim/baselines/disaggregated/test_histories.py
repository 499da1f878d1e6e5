"""Whatever comes, whichever way keys and values go."""

from __future__ import annotations

import pytest
from hypothesis import given, settings

from distkv.sim.baselines.cluster import TOO_LARGE
from distkv.sim.baselines.disaggregated.pulling import Pulling
from distkv.sim.baselines.disaggregated.pushing import Pushing
from distkv.sim.outcome import DEADLINE
from distkv.sim.trace import TraceRequest
from tests.sim.baselines.disaggregated.parts import Place, divided, quiet
from tests.sim.baselines.test_cluster import REQUESTS


@settings(max_examples=40, deadline=None)
@given(requests=REQUESTS)
@pytest.mark.parametrize("place", [Pulling, Pushing])
@pytest.mark.parametrize(("instances", "prefills", "deadline"), [(2, 1, None), (4, 2, 3.0), (3, 2, 0.5)])
def test_every_request_ends_or_is_refused(
    place: Place, instances: int, prefills: int, deadline: float | None, requests: list[TraceRequest]
) -> None:
    cluster = divided(place, prefills, instances=instances, deadline_s=deadline, sample_s=0.2, most_s=1000.0)
    cluster.play(requests, quiet)
    for one in cluster.outcomes:
        assert (one.failed == TOO_LARGE) == (-(-one.request.num_tokens // 16) > 100)
        assert one.failed in ("", TOO_LARGE, DEADLINE)
        assert len(one.times_s) == one.request.output_tokens or one.failed
        assert list(one.times_s) == sorted(one.times_s)
    cluster.agenda.run(cluster.agenda.now() + 10.0)
    assert [one.free for one in cluster.instances] == [100] * instances
    assert not any(one.running or one.queue or one.coming or one.leaving or one.elsewhere for one in cluster.instances)
