"""Command lines and environment of the daemons of a local cluster."""

from __future__ import annotations

import pytest

from distkv.client.local import launch


@pytest.mark.parametrize("empty", [(), []])
def test_an_empty_list_is_as_none(empty: object) -> None:
    """It became an empty text, which is one name, key or origin, and none that can be."""
    settings = {"model": "m", "served_model_name": empty, "allowed_origins": empty, "api_key": empty, "port": 0}
    assert launch.command("gateway", settings)[4:] == ["--model=m", "--port=0"]
    assert "DISTKV_API_KEY" not in launch.environment("gateway", settings)


def test_a_key_that_is_empty_is_not_left_out() -> None:
    """Nobody serves without a key unawares."""
    assert launch.environment("gateway", {"api_key": ""})["DISTKV_API_KEY"] == ""
