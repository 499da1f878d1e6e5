from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import pytest

from distkv import Client
from distkv.demo.random_checkpoint import make_checkpoint
from distkv.offline import llm
from distkv.wire.messages.to_rmanager import Submit
from tests.checkpoints import TEXT
from tests.client.fakes import BackgroundFakes, FakeCluster, Serve, count_up

TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}<|{{ message['role'] }}|>{{ message['content'] }}\n{% endfor %}"
    "{% if tools %}{{ tools | length }} tools\n{% endif %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny Llama with a tokenizer and a chat template."""
    path = make_checkpoint(tmp_path_factory.mktemp("offline") / "model", vocab=320, text_for_tokenizer=TEXT)
    (path / "chat_template.jinja").write_text(TEMPLATE)
    return path


class Started:
    """An LLM before fakes. settings: what its cluster was started with."""

    def __init__(self, made: llm.LLM, fakes: FakeCluster, settings: dict[str, Any]) -> None:
        self.llm, self.fakes, self.settings = made, fakes, settings

    def submits(self) -> list[Submit]:
        """What the instances were asked so far."""
        return [submit for one in self.fakes.instances for submit in one.of(Submit)]


@pytest.fixture
def start(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Started]]:
    """Makes LLMs: one fake instance per `serve`, which counts if none is given."""
    background = BackgroundFakes()
    made: list[weakref.ref[llm.LLM]] = []

    def begin(*serves: Serve, model: Path = checkpoint, **settings: Any) -> Started:
        fakes = background.start(*(serves or (count_up,)))
        seen: dict[str, Any] = {}

        class Local:
            def __init__(self, model: Path, instances: int, kv_tokens: Any, dtype: str, threads: Any, **more: Any):
                seen.update(more, model=model, instances=instances, kv_tokens=kv_tokens, dtype=dtype, threads=threads)
                self.own = Client(fakes.address)

            def client(self) -> Client:
                return self.own

            def noting_deaths(self) -> AbstractContextManager[None]:
                return nullcontext()

            def close(self) -> None:
                seen["closed"] = seen.get("closed", 0) + 1
                self.own.close()

        monkeypatch.setattr(llm, "LocalCluster", Local)
        one = llm.LLM(model, **settings)
        made.append(weakref.ref(one))
        return Started(one, fakes, seen)

    yield begin
    for known in made:
        if (one := known()) is not None:
            one.close()
    background.close()
