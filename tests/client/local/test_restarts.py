from __future__ import annotations

from distkv.client.local.restarts import LONGEST_PAUSE_S, WINDOW_S, Restarts


def test_nothing_is_started_again_unless_asked():
    restarts = Restarts(0)
    assert restarts.grant("i0", 1.0) is None and restarts.count("i0", 1.0) == 0


def test_pauses_double_up_to_a_bound():
    restarts = Restarts(20)
    pauses = [restarts.grant("i0", float(now)) for now in range(12)]
    assert pauses[:7] == [0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0] and set(pauses[7:]) == {LONGEST_PAUSE_S}


def test_the_limit_is_within_a_window_and_of_each_process():
    restarts = Restarts(2)
    assert [restarts.grant("i0", now) for now in (0.0, 10.0, 20.0)] == [0.5, 1.0, None]
    assert restarts.grant("i1", 20.0) == 0.5
    # The first of i0 has left the window, then the second.
    assert restarts.grant("i0", WINDOW_S) == 1.0
    assert restarts.grant("i0", WINDOW_S + 9.0) is None
    assert restarts.grant("i0", WINDOW_S + 10.0) == 1.0
    assert restarts.grant("i0", 3 * WINDOW_S) == 0.5
    assert restarts.count("i0", 3 * WINDOW_S) == 1
