"""What `distkv up` says once its cluster is ready: where everything is, and what to do with it."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import urlsplit

from distkv.client.local.cluster import LocalCluster
from distkv.config import DEMO_MODEL

PROMPT = "Once upon a time"
DEMO_PROMPT = (  # all that the demo model does is to find facts
    "The access code of the north station is 48213. Question: What is the access code of the north station? Answer:"
)
WILDCARDS = {"0.0.0.0": "127.0.0.1", "[::]": "[::1]"}


def introduction(cluster: LocalCluster, gateway: Mapping[str, Any], model: str, longest_tokens: int) -> Iterator[str]:
    """A line for each process, and examples that can be pasted; gateway: the settings that it was given.
    longest_tokens: prompt and output of the longest request that is served; 0 if that is not known."""
    is_demo = model == DEMO_MODEL
    prompt = DEMO_PROMPT if is_demo else PROMPT
    yield f"ready at {cluster.address}"
    for one in cluster.instances:
        device = cluster.devices.get(one.instance_id)
        on = f", on {device}" if device else ""
        yield f"{one.instance_id}: pid {one.pid}, {one.address}{on}, log {one.log_path}"
    if longest_tokens:
        yield f"longest request: {longest_tokens:,} tokens, prompt and output"
    if cluster.gateway is not None:
        yield f"gateway: pid {cluster.gateway.pid}, {cluster.http_url}, log {cluster.gateway.log_path}"
        body: dict[str, Any] = {"model": (gateway.get("served_model_name") or [model])[0], "prompt": prompt}
        if is_demo:
            body["temperature"] = 0
        key = '-H "Authorization: Bearer KEY" ' if gateway.get("api_key") else ""
        data = f"-H 'Content-Type: application/json' -d {shlex.quote(json.dumps(body))}"
        yield f"try: curl {from_here(cluster.http_url)}/v1/completions {key}{data}"
    greedy = " --temperature 0" if is_demo else ""
    yield f'try: distkv generate "{prompt}" --address {cluster.address}{greedy}'


def from_here(url: str) -> str:
    """The arguments of curl for a URL of this machine: a certificate for another name will do."""
    parts = urlsplit(url)
    host, _, port = parts.netloc.rpartition(":")
    insecure = "--insecure " if parts.scheme == "https" else ""
    return f"{insecure}{parts.scheme}://{WILDCARDS.get(host, host)}:{port}"
