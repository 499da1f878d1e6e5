"""What the clients' tests install is pinned to the last package, light, and what the page says."""

from __future__ import annotations

import re

from tests.clients.environment import REQUIREMENTS, ROOT

PINS = dict(
    line.split("==") for line in REQUIREMENTS.read_text(encoding="utf-8").splitlines() if not line.startswith("#")
)
CLIENTS = {"litellm": "litellm", "langchain-openai": "langchain-openai", "lm-eval": "lm_eval", "AIPerf": "aiperf"}


def test_none_of_them_needs_torch() -> None:
    assert len(PINS) > len(CLIENTS) and not PINS.keys() & {"torch", "triton", "nvidia-cublas"}


def test_the_page_names_the_versions() -> None:
    page = (ROOT / "docs/usage.md").read_text(encoding="utf-8")
    for name, package in CLIENTS.items():
        (version,) = re.findall(rf"\b{name}\s(\d[\d.]*\d)\b", page)
        assert f"{PINS[package]}.".startswith(f"{version}."), name
