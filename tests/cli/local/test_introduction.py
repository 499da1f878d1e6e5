from __future__ import annotations

import pytest

from distkv.cli.local.introduction import from_here


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
