from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import distkv
from distkv.text.tokenizer import Tokenizer
from tests.gateway.harness import error_of, until

Start = Callable[..., Any]


async def test_who_is_served(start: Start) -> None:
    gateway = await start(served_model_name="org/tiny,alias")
    body = (await gateway.http.get("/v1/models")).json()
    assert body["object"] == "list" and [one["id"] for one in body["data"]] == ["org/tiny", "alias"]
    first = body["data"][0]
    assert first == {
        "id": "org/tiny",
        "object": "model",
        "created": first["created"],
        "owned_by": "distkv",
        "root": "org/tiny",
        "parent": None,
        "max_model_len": 64 * 16,
    }
    assert (await gateway.http.get("/v1/models/org/tiny")).json() == first
    error_of(await gateway.http.get("/v1/models/gpt"), 404, "model", "model_not_found")


async def test_the_limit_is_what_users_are_told(start: Start) -> None:
    gateway = await start(max_model_len="100")
    assert (await gateway.http.get("/v1/models")).json()["data"][0]["max_model_len"] == 100


async def test_the_directory_is_the_name_unless_there_is_another(start: Start, checkpoint: Path) -> None:
    gateway = await start(served_model_name=())
    assert (await gateway.complete(max_tokens=1)).json()["model"] == str(checkpoint)


async def test_version_and_life(start: Start) -> None:
    gateway = await start()
    assert (await gateway.http.get("/version")).json() == {"version": distkv.__version__}
    assert (await gateway.http.get("/live")).json() == {"status": "ok"}
    assert (await gateway.http.get("/health")).json() == {"status": "ok"}


async def test_health_follows_the_instances(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("distkv.gateway.operations.cluster.SILENCE_S", 1.5)
    gateway = await start()
    (instance,) = gateway.fakes.instances
    gateway.fakes.gmanager.members = [instance.member("draining")]
    await until(lambda: _unhealthy(gateway))
    gateway.fakes.gmanager.members = [instance.member("ready")]
    await gateway.is_ready()
    # Its gManager may not have noticed yet that an instance has ended.
    instance.die()
    await until(lambda: _unhealthy(gateway))
    assert (await gateway.http.get("/live")).status_code == 200


async def _unhealthy(gateway: Any) -> bool:
    answer = await gateway.http.get("/health")
    return bool(answer.status_code == 503 and answer.json() == {"status": "no instance is ready"})


async def test_tokenize(start: Start, checkpoint: Path) -> None:
    gateway = await start()
    ids = Tokenizer.from_dir(checkpoint).encode("hello world")
    body = (await gateway.post("/tokenize", prompt="hello world", model="tiny")).json()
    assert body == {"count": len(ids), "max_model_len": 64 * 16, "tokens": ids, "token_strs": None}
    body = (await gateway.post("/tokenize", prompt="hello world", return_token_strs=True)).json()
    assert "".join(body["token_strs"]) == "helloĠworld"
    said = [{"role": "user", "content": "hi"}]
    body = (await gateway.post("/tokenize", messages=said)).json()
    assert body["tokens"] == Tokenizer.from_dir(checkpoint).encode("<|user|>hi\n<|assistant|>")
    body = (await gateway.post("/tokenize", messages=said, add_generation_prompt=False)).json()
    assert body["tokens"] == Tokenizer.from_dir(checkpoint).encode("<|user|>hi\n")
    error_of(await gateway.post("/tokenize"), 400, "prompt")
    error_of(await gateway.post("/tokenize", prompt="x", messages=said), 400, "prompt")
    error_of(await gateway.post("/tokenize", messages=[]), 400, "messages")


async def test_detokenize(start: Start, checkpoint: Path) -> None:
    gateway = await start()
    ids = Tokenizer.from_dir(checkpoint).encode("Füße 東京")
    assert (await gateway.post("/detokenize", tokens=ids)).json() == {"prompt": "Füße 東京"}
    assert (await gateway.post("/detokenize", tokens=[])).json() == {"prompt": ""}
    assert (await gateway.post("/detokenize", tokens=[2**31 - 1])).status_code == 200
