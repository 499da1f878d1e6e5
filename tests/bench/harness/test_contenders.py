"""What is measured of a request to a cluster."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any, cast

import pytest

from distkv.bench.harness.contenders import MOST_TRIES, ask_cluster
from distkv.client.local.cluster import LocalCluster
from distkv.types import Chunk


class Busy:
    """Whose tokens come together a few times: the client got no processor meanwhile."""

    def __init__(self, times: int) -> None:
        self.asked, self._times = 0, times

    def stream(self, prompt: list[int], params: Any) -> Iterator[Chunk]:
        self.asked += 1
        if self.asked <= self._times:
            yield Chunk("r", [1, 2, 3])
            return
        yield Chunk("r", [1, 2])
        time.sleep(0.001)
        yield Chunk("r", [3])


def test_tokens_that_come_together_have_no_time_between_them() -> None:
    busy = Busy(2)
    timing = ask_cluster(cast(LocalCluster, busy), [5, 6], 3)
    assert busy.asked == 3 and timing.token_ids == (1, 2, 3) and timing.prompt_tokens == 2
    assert 0 < timing.decode_tokens_per_s == 1 / timing.rest_s
    with pytest.raises(RuntimeError, match="all 3 tokens came together"):
        ask_cluster(cast(LocalCluster, Busy(MOST_TRIES)), [5, 6], 3)
