from __future__ import annotations

from distkv.sim.baselines.batching.queue import Queue
from distkv.sim.baselines.batching.served import Served
from distkv.sim.outcome import Outcome
from distkv.sim.trace import TraceRequest


def served(tokens: int) -> Served:
    return Served(Outcome(TraceRequest(0.0, tokens, 1), []), 0.0, 0)


def test_what_all_need_is_counted_as_they_come_and_go() -> None:
    queue = Queue(16)
    first, second, third = served(100), served(16), served(17)
    for one in (first, second, third):
        queue.expect(one)
    assert (len(queue), queue.num_on_way, queue.tokens, queue.blocks) == (0, 3, 133, 10)
    assert queue.arrive(second) and queue.arrive(first)
    assert (list(queue), queue.num_on_way, queue.blocks) == ([second, first], 1, 10)
    assert queue.pop_first() is second and queue.first is first and (queue.tokens, queue.blocks) == (117, 9)
    queue.put_back(second)
    assert queue.first is second and queue.tokens == 133
    queue.validate()


def test_who_is_removed_does_not_arrive() -> None:
    queue = Queue(16)
    one, other = served(100), served(50)
    queue.expect(one)
    queue.expect(other)
    assert queue.arrive(other) and queue.remove(other) and queue.remove(one)
    assert not queue.remove(one) and not queue.arrive(one)
    assert queue.first is None and (queue.tokens, queue.blocks) == (0, 0)
