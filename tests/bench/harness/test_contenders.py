"""What is measured of a request to a cluster."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from typing import Any, cast

import pytest

from distkv.bench.harness import contenders
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
        yield Chunk("r", [3])


def test_tokens_that_come_together_have_no_time_between_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contenders.time, "perf_counter", count().__next__)
    busy = Busy(2)
    timing = ask_cluster(cast(LocalCluster, busy), [5, 6], 3)
    assert busy.asked == 3 and timing.token_ids == (1, 2, 3) and timing.prompt_tokens == 2
    assert timing.rest_s == timing.decode_tokens_per_s == 1
    with pytest.raises(RuntimeError, match="all 3 tokens came together"):
        ask_cluster(cast(LocalCluster, Busy(MOST_TRIES)), [5, 6], 3)
