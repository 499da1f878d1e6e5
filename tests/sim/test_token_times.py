"""Times of tokens: what is shared reads as what was noted one by one."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from distkv.sim.token_times import SharedTimes, TokenTimes

Noted = list[tuple[str, list[float]]]
times = st.lists(st.floats(0, 1e6), max_size=5)


@given(st.floats(-1e3, 1e3), st.lists(st.tuples(st.sampled_from(["append", "extend", "share", "miss", "look"]), times)))
def test_they_read_as_they_were_noted(offset_s: float, noted: Noted) -> None:
    found, expected = TokenTimes(offset_s), list[float]()
    shared = SharedTimes()
    found.join(shared)
    for how, values in noted:
        match how:
            case "append":
                for value in values:
                    found.append(value)
            case "extend":
                found.extend(values)
            case "share":
                shared.add(np.array([*values, 0.0]))
                values = [*values, 0.0]
            case "miss":
                found.leave(SharedTimes())
                found.leave(shared)
                shared.add(np.array([*values, 0.0]))
                found.join(shared)
                continue
            case _:
                assert list(found) == expected
                continue
        expected += [value + offset_s for value in values]
        assert len(found) == len(expected) and bool(found) == bool(expected)
    assert list(found) == expected and list(found[1:]) == expected[1:]
    again = TokenTimes()
    again.extend(expected)
    assert found == again and repr(found) == f"TokenTimes({expected})"
    again.append(0.0)
    assert found != again


def test_what_is_shared_stays_as_it_is() -> None:
    shared = np.array([1.0, 2.0])
    one, other = TokenTimes(-1.0), TokenTimes(0.5)
    batch = SharedTimes()
    batch.add(np.array([0.5]))
    for found in (one, other):
        found.join(batch)
    batch.add(shared)
    assert (one[0], one[-1]) == (0.0, 1.0) and list(other) == [1.5, 2.5]
    other.append(3.0)
    assert list(shared) == [1.0, 2.0] and len(one) == 2 and list(other) == [1.5, 2.5, 3.5]
