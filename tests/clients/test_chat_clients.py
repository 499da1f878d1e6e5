"""The official client in two major versions, litellm and langchain, against the demo model."""

from __future__ import annotations

import math
import re
from pathlib import Path

import openai
import pytest

from distkv import LocalCluster
from distkv.text.tokenizer import Tokenizer
from tests.checkpoints import reference_logits
from tests.clients.conftest import Ask, Run, block
from tests.clients.environment import INSTALL_S
from tests.clients.programs import with_openai

pytestmark = [pytest.mark.slow, pytest.mark.timeout(INSTALL_S + 120)]
CLOSE = 1e-3


def test_the_official_client(demo: LocalCluster, ask: Ask, run: Run, checkpoint: Path) -> None:
    found = with_openai.found(demo.http_url)
    assert found["chat"].strip() == "48213" and found["chat_ended"] == "stop"
    assert found["chat_streamed"] == found["chat"] and found["async"] == [found["chat"]] * 2
    assert re.fullmatch("[0-9]{5}", found["chat_parsed"])
    assert found["chat_usage"] == found["chat_streamed_usage"]
    # The end token has logprobs too, and counts.
    assert found["chat_usage"][1] == len(found["chat_logprobs"])
    assert all(logprob <= 0 and likely == 2 for _token, logprob, likely in found["chat_logprobs"])
    assert found["sampled"] == found["sampled_streamed"] and len(set(found["sampled"])) == 3
    assert found["sampled_tokens"] <= 3 * 8
    ids = tokens_of(checkpoint, with_openai.PROMPT)
    rows = reference_logits(checkpoint, ids).log_softmax(-1)
    scored = [float(rows[place - 1, token]) for place, token in enumerate(ids) if place]
    assert found["scored"][0] is None and found["scored"][1:] == pytest.approx(scored, abs=CLOSE)
    assert found["models"] == ["demo"]
    assert found["errors"] == {
        "too long": ["BadRequestError", "context_length_exceeded", None],
        "no such model": ["NotFoundError", "model_not_found", "model"],
        "no such temperature": ["BadRequestError", None, "temperature"],
    }
    other = run("python", "-c", "import openai; print(openai.__version__)")
    assert other.partition(".")[0] != openai.__version__.partition(".")[0]
    assert ask("with_openai.py") == found


def test_litellm(ask: Ask, run: Run, checkpoint: Path) -> None:
    found = ask("with_litellm.py", checkpoint / "tokenizer.json")
    for chat in found["chats"]:
        assert chat["text"].strip() == "Greta Holm" and chat["ended"] == "stop"
        assert chat["streamed"] == chat["text"] and chat["choices"] == [chat["text"]] * 2
        assert chat["shaped"] in ("Greta Holm", "nobody")
        assert chat["streamed_usage"] == chat["usage"]
        assert chat["too_long"] == "ContextWindowExceededError"
    assert found["plain"].strip() == "Greta Holm"
    assert found["counted"] == found["prompt_tokens"] > 0
    assert "Greta Holm" in run("python", "-", text=block("docs/usage.md", "python", "import litellm"))


def test_langchain(ask: Ask, run: Run) -> None:
    found = ask("with_langchain.py")
    assert found["text"].strip() == found["after_tools"].strip() == "48213"
    assert found["streamed"] == found["async"] == found["text"]
    assert [one.strip() for one in found["batch"]] == ["48213", "Greta Holm"]
    assert found["streamed_usage"] == found["usage"]
    assert found["usage"]["output_tokens"] == len(found["logprobs"]) > 1
    assert all(-math.inf < logprob <= 0 for logprob in found["logprobs"])
    assert set(found["shaped"]) <= {"48213", "77120"} and len(found["shaped"]) == 2
    ((name, arguments),) = found["called"]
    assert name == "look_up" and arguments["place"] in ("the gate", "the mill")
    assert "ContextOverflowError" in found["too_long"]
    assert found["completion"].strip() == "48213"
    assert "48213" in run("python", "-", text=block("docs/usage.md", "python", "import langchain_openai"))


def tokens_of(checkpoint: Path, text: str) -> list[int]:
    tokenizer = Tokenizer.from_dir(checkpoint)
    assert tokenizer is not None
    return tokenizer.encode(text)
