"""The longest request that an instance takes: what its checkpoint was made for, or what its user says."""

from __future__ import annotations

import pytest
from structlog.testing import capture_logs

from distkv.actors.instance.process import member_of, settings_of
from distkv.config import InstanceConfig, build
from distkv.wire.messages.from_worker import WorkerReady
from tests.control.parts import make_member


@pytest.mark.parametrize(("wanted", "longest"), [(None, 4096), (100, 100), (5000, 5000)])
def test_the_checkpoint_says_it_unless_the_user_does(wanted: int | None, longest: int) -> None:
    config = build(InstanceConfig, {"model": "demo", "instance_id": "i0", "max_model_len": wanted})
    ready = WorkerReady(
        pid=1, compat="", data=make_member("a").data, block_tokens=4, num_slots=9, eos_token_ids=(), vocab_size=1,
        max_positions=4096,
    )  # fmt: skip
    with capture_logs() as lines:
        settings = settings_of(config, 1, ready)
    assert settings.max_model_len == longest
    assert member_of(settings, "tcp://127.0.0.1:1", 2, ready).max_model_len == longest
    assert bool(lines) == (longest > 4096), "more than the model was made for is allowed, with a warning"
