from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

import distkv
from distkv.text.tokenizer import Tokenizer
from tests.client.fakes import FakeCluster
from tests.gateway.harness import error_of, speak, started, until

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
        "max_model_len": 64 * 16 + 1,
    }
    assert (await gateway.http.get("/v1/models/org/tiny")).json() == first
    error_of(await gateway.http.get("/v1/models/gpt"), 404, "model", "model_not_found")


async def test_the_limit_is_what_users_are_told(start: Start) -> None:
    gateway = await start(max_model_len="100")
    assert (await gateway.http.get("/v1/models")).json()["data"][0]["max_model_len"] == 100


@pytest.mark.parametrize(("limits", "longest"), [((0, 0), 150), ((100, 0), 150), ((100, 90), 100), ((1000, 2000), 150)])
async def test_what_the_instances_take_is_the_limit(checkpoint: Path, limits: tuple[int, int], longest: int) -> None:
    """The most of them, for a request goes to one that takes it; and in the words that clients recognize."""
    fakes = FakeCluster(speak, speak)
    fakes.gmanager.members = [
        msgspec.structs.replace(member, max_model_len=limit)
        for member, limit in zip(fakes.gmanager.members, limits, strict=True)
    ]
    async with started(checkpoint, fakes=fakes, max_model_len="150") as gateway:
        await until(lambda: _longest(gateway, longest))
        said = error_of(await gateway.complete([1] * 30, max_tokens=130), 400, None, "context_length_exceeded")
        assert said == (
            f"This model's maximum context length is {longest} tokens. However, you requested 130 output tokens and "
            "your prompt contains 30 input tokens, for a total of 160 tokens. Please reduce the length of the input "
            "prompt or the number of requested output tokens."
        )


async def _longest(gateway: Any, expected: int) -> bool:
    return bool((await gateway.http.get("/v1/models")).json()["data"][0]["max_model_len"] == expected)


async def test_the_directory_is_the_name_unless_there_is_another(start: Start, checkpoint: Path) -> None:
    gateway = await start(served_model_name=())
    assert (await gateway.complete(max_tokens=1)).json()["model"] == str(checkpoint)


async def test_version_and_life(start: Start) -> None:
    gateway = await start()
    assert (await gateway.http.get("/version")).json() == {"version": distkv.__version__}
    assert (await gateway.http.get("/live")).json() == {"status": "ok"}
    assert (await gateway.http.get("/health")).json() == {"status": "ok"}


async def test_ping_is_the_health_check_of_others(start: Start) -> None:
    gateway = await start()
    for answer in (await gateway.http.get("/ping"), await gateway.http.post("/ping")):
        assert (answer.status_code, answer.json()) == (200, {"status": "ok"})
    gateway.stop.set()
    await until(lambda: _failing(gateway))


async def _failing(gateway: Any) -> bool:
    try:
        return (await gateway.http.get("/ping")).status_code == 503
    except httpx.TransportError:
        return True


async def test_what_openai_has_and_this_server_has_not(start: Start) -> None:
    gateway = await start(api_key="one")
    for path in ("/v1/responses", "/v1/embeddings"):
        error_of(await gateway.post(path, input="x"), 401, None, "invalid_api_key")
        answer = await gateway.post(path, {"authorization": "Bearer one"}, input="x")
        assert error_of(answer, 501, None, "not_implemented").startswith(f"{path} is not implemented")
        assert answer.headers["x-should-retry"] == "false"


async def test_the_configuration_of_the_tokenizer(start: Start, with_defaults: Callable[..., Path], bare: Path) -> None:
    path = with_defaults()
    token = {"content": "<s>", "lstrip": False, "special": True, "__type": "AddedToken"}
    config = {
        "bos_token": token, "eos_token": "</s>", "model_max_length": 99, "vocab_file": "/home/me/vocab",
        "added_tokens_decoder": {"1": token}, "additional_special_tokens": [token, "x"], "chat_template": "old",
    }  # fmt: skip
    (path / "tokenizer_config.json").write_text(json.dumps(config))
    (path / "chat_template.jinja").write_text("new")
    gateway = await start(model=path)
    assert (await gateway.http.get("/tokenizer_info")).json() == {
        "tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "eos_token": "</s>", "model_max_length": 99,
        "added_tokens_decoder": {"1": "<s>"}, "additional_special_tokens": ["<s>", "x"], "chat_template": "new",
    }  # fmt: skip
    gateway = await start(model=bare)
    assert "no tokenizer" in error_of(await gateway.http.get("/tokenizer_info"), 400)


async def test_why_a_request_lies_where_it_lies(start: Start) -> None:
    gateway = await start(api_key="one")
    error_of(await gateway.http.get("/explain/i0-r"), 401, None, "invalid_api_key")
    headers = {"authorization": "Bearer one"}
    found = (await gateway.http.get("/explain/cmpl-i0-r", headers=headers)).json()
    assert (found["id"], found["instance_id"], found["state"]) == ("i0-r", "i0", "running")
    assert any("it borrowed 1 rBlock from other" in sentence for sentence in found["sentences"])
    for name in ("no/body", "no%2Fbody"):
        answer = await gateway.http.get(f"/explain/{name}", headers=headers)
        assert "no request 'no/body' is known" in error_of(answer, 404, None, "not_found")
    answer = await gateway.http.get("/explain/nobody", headers=headers)
    assert "no request 'nobody' is known" in error_of(answer, 404, None, "not_found")


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
    assert body == {"count": len(ids), "max_model_len": 64 * 16 + 1, "tokens": ids, "token_strs": None}
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
