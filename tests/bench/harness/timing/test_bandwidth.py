"""How fast a machine streams from memory, where it does not compute as it should."""

from __future__ import annotations

import pytest

from distkv.bench.computing import attention
from distkv.bench.harness.timing.bandwidth import Bandwidth
from distkv.errors import ConfigError
from distkv.kernels.cpu.dispatch import choose


def test_fewer_threads_than_are_asked_for_give_no_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of one thread would stand for those of all."""
    native = choose().native
    if native is None:
        pytest.skip("the native library is not built")
    monkeypatch.setattr(native, "set_threads", lambda *_: 1)
    with pytest.raises(ConfigError, match="too few threads to compute with 2"):
        Bandwidth(2)
    with pytest.raises(ConfigError, match="too few threads to compute with 2"):
        attention.main.main(["--quick", "--threads", "2"], standalone_mode=False)
