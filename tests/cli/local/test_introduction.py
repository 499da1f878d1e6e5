from __future__ import annotations

from types import SimpleNamespace

import pytest

from distkv.cli.local.introduction import from_here, introduction


@pytest.mark.parametrize(
    ("url", "arguments"),
    [
        ("http://127.0.0.1:8000", "http://127.0.0.1:8000"),
        ("http://0.0.0.0:8000", "http://127.0.0.1:8000"),
        ("http://[::]:8000", "http://[::1]:8000"),
        ("https://llm.example.org:443", "--insecure https://llm.example.org:443"),
    ],
)
def test_curl_reaches_it_from_this_machine(url, arguments):
    assert from_here(url) == arguments


def test_it_says_which_device_an_instance_was_given():
    handles = [
        SimpleNamespace(instance_id=name, pid=1, address=f"tcp://{name}", log_path="log") for name in ("i0", "i1")
    ]
    cluster = SimpleNamespace(address="tcp://g", instances=handles, gateway=None, devices={"i1": "cuda:1"})
    lines = list(introduction(cluster, {}, "demo", 2033))
    assert lines[1:3] == ["i0: pid 1, tcp://i0, log log", "i1: pid 1, tcp://i1, on cuda:1, log log"]
    assert lines[3] == "longest request: 2,033 tokens, prompt and output"
