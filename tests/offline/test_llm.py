"""`LLM` before fakes: what it sends, what it makes of the answers, and how it ends."""

from __future__ import annotations

import gc
import io
from collections.abc import Callable
from contextlib import redirect_stderr
from typing import Any

import pytest

from distkv import Client, ConfigError, InvalidParams, RequestFailed, RequestRefused, SamplingParams
from distkv.offline.llm import RETRIES
from distkv.offline.outputs import Logprob
from distkv.text.chat_template import ChatTemplate
from distkv.types import RequestOutput, TokenLogprobs
from distkv.wire.messages.to_client import RequestEnded, TokenChunk
from distkv.wire.messages.to_rmanager import Submit
from tests.checkpoints import edit_config
from tests.client.fakes import FakeInstance
from tests.offline.conftest import Started
from tests.token_ids import ids_of

Start = Callable[..., Started]
TWO = SamplingParams(max_tokens=2)
MOST = 1025
"""Prompt and output of the longest request that a fake takes."""


def echo(instance: FakeInstance, route: bytes, submit: Submit) -> list[Any]:
    """The first token of the prompt."""
    first = ids_of(submit)[0]
    return [TokenChunk(request_id=submit.request_id, token_ids=(first,), text=f"{first}", finish_reason="length")]


def rich_answer(instance: FakeInstance, route: bytes, submit: Submit) -> list[Any]:
    """With everything that may be asked for."""
    return [
        TokenChunk(request_id=submit.request_id, prompt_logprobs=(None, TokenLogprobs(41, -3.0, 7, ((40, -0.5),)))),
        TokenChunk(
            request_id=submit.request_id,
            token_ids=(40, 41),
            text="xy",
            finish_reason="stop",
            stop_reason="z",
            logprobs=(TokenLogprobs(40, -0.5, 1, ((40, -0.5), (41, -3.0))), TokenLogprobs(41, -2.0, 2, ((40, -1.0),))),
        ),
    ]


def test_every_form_of_a_prompt(start: Start) -> None:
    one = start()
    tokenizer = one.llm.get_tokenizer()
    ids = tokenizer.encode("hello")
    for prompts, texts in (
        ("hello", ["hello"]),
        (["hello", "hello"], ["hello", "hello"]),
        (ids, [None]),
        ([ids, tuple(ids)], [None, None]),
        ({"prompt": "hello"}, ["hello"]),
        ([{"prompt_token_ids": ids}, {"prompt": "hello", "prompt_token_ids": ids}, "hello"], [None, "hello", "hello"]),
    ):
        found = one.llm.generate(prompts, TWO, use_tqdm=False)
        assert [output.prompt for output in found] == texts
        assert all(output.prompt_token_ids == ids and output.finished for output in found)
        assert [(out.index, out.text, out.token_ids, out.finish_reason) for out in found[0].outputs] == [
            (0, "0 1 ", [0, 1], "length")
        ]
    assert {ids_of(submit) for submit in one.submits()} == {tuple(ids)}
    assert one.llm.generate([], TWO) == []


def test_thousands_come_in_their_order_and_few_are_under_way(start: Start) -> None:
    one = start(echo, echo, instances=2, max_num_seqs=100)
    assert one.llm._at_once == 400
    found = one.llm.generate([[index % 300, 5] for index in range(3000)], TWO, use_tqdm=False)
    assert [output.outputs[0].token_ids[0] for output in found] == [index % 300 for index in range(3000)]
    assert [output.request_id for output in found[:3]] == ["0", "1", "2"]
    assert len({submit.request_id for submit in one.submits()}) == 3000


def test_parameters_for_all_or_one_each(start: Start) -> None:
    one = start()
    found = one.llm.generate(["a", "b"], [TWO, SamplingParams(max_tokens=3)], use_tqdm=False)
    assert [len(output.outputs[0].token_ids) for output in found] == [2, 3]
    seeded = SamplingParams(max_tokens=1, seed=7)
    found = one.llm.generate(["a", "b"], seeded, n=3, use_tqdm=False)
    assert [[out.index for out in output.outputs] for output in found] == [[0, 1, 2]] * 2
    assert sorted(submit.params.seed for submit in one.submits()[2:]) == [7, 7, 8, 8, 9, 9]
    with pytest.raises(InvalidParams, match="one for all or one for each of 3 prompts"):
        one.llm.generate(["a", "b", "c"], [TWO, TWO], use_tqdm=False)
    for n in (0, True, "2"):
        with pytest.raises(InvalidParams, match="n: expected an integer in"):
            one.llm.generate("a", TWO, n=n, use_tqdm=False)


def test_defaults_are_the_model_s_unless_they_are_not_wanted(start: Start, checkpoint, tmp_path) -> None:
    model = tmp_path / "model"
    model.mkdir()
    for file in checkpoint.iterdir():
        (model / file.name).write_bytes(file.read_bytes())
    edit_config(model, lambda raw: raw.update(temperature=0.25, top_k=5, max_new_tokens=3), "generation_config.json")
    one = start(model=model)
    wanted = SamplingParams(max_tokens=3, temperature=0.25, top_k=5)
    assert one.llm.get_default_sampling_params() == wanted
    one.llm.generate("a", use_tqdm=False)
    one.llm.generate("a", TWO, use_tqdm=False)
    assert [submit.params for submit in one.submits()] == [wanted, TWO]
    assert start(model=model, generation_config="none").llm.get_default_sampling_params() == SamplingParams()


@pytest.mark.parametrize(
    ("prompt", "error", "told"),
    [
        (
            [5] * MOST,
            RequestRefused,
            f"maximum context length is {MOST} tokens. However, you requested 1 output tokens",
        ),
        ("word " * MOST, RequestRefused, f"maximum context length is {MOST} tokens"),
        ([], InvalidParams, "at least one token id"),
        ([-1], InvalidParams, "token ids in"),
        ({"prompt_token_ids": [1], "multi_modal_data": {"image": 1}}, RequestRefused, "not 'multi_modal_data'"),
        ({}, RequestRefused, "a prompt has 'prompt' or 'prompt_token_ids'"),
        ("\ud800", RequestRefused, "UTF-8"),
        (5, TypeError, "a prompt is a str or a list"),
        (b"text", TypeError, "not bytes"),
        (bytearray(b"text"), TypeError, "not bytearray"),
        ({"prompt_token_ids": b"text"}, TypeError, "not bytes"),
        ({"prompt_token_ids": memoryview(b"text")}, TypeError, "not memoryview"),
    ],
)
def test_one_prompt_that_cannot_be_served_is_told_before_anything_is_computed(start, prompt, error, told) -> None:
    """vLLM raises a ValueError for the whole call."""
    one = start()
    with pytest.raises(error, match=told) as caught:
        one.llm.generate(["fine", prompt], TWO, use_tqdm=False)
    assert caught.value.__notes__ == ["prompt 1 of 2"]
    assert error is TypeError or isinstance(caught.value, ValueError)
    assert one.submits() == []


def test_output_ends_where_the_longest_request_does(start: Start) -> None:
    one = start()
    (found,) = one.llm.generate([5] * (MOST - 3), SamplingParams(max_tokens=50, min_tokens=9), use_tqdm=False)
    assert len(found.outputs[0].token_ids) == 3 and found.outputs[0].finish_reason == "length"
    one.llm.generate([5] * 9, SamplingParams(max_tokens=None), use_tqdm=False)
    assert [(submit.params.max_tokens, submit.params.min_tokens) for submit in one.submits()] == [(3, 3), (MOST - 9, 0)]


def test_one_conversation_or_many(start: Start) -> None:
    one = start()
    hello = [{"role": "user", "content": [{"type": "text", "text": "hello"}]}]
    text = "<s><|user|>hello\n"
    cases: list[tuple[dict[str, Any], str]] = [
        ({}, f"{text}<|assistant|>"),
        ({"add_generation_prompt": False}, text),
        ({"tools": [{"type": "function"}]}, f"{text}1 tools\n<|assistant|>"),
        ({"chat_template": "{{ bos_token }}{{ more }}", "chat_template_kwargs": {"more": 3}}, "<s>3"),
    ]
    for how, expected in cases:
        (found,) = one.llm.chat(hello, TWO, use_tqdm=False, **how)
        assert found.prompt == expected.replace("<s>", one.llm._model.template.render([], add_generation_prompt=False))
        assert found.prompt_token_ids == one.llm.get_tokenizer().encode(found.prompt, add_special_tokens=False)
    goes_on = [*hello, {"role": "assistant", "content": "The gate"}]
    how = {"add_generation_prompt": False, "continue_final_message": True}
    found = one.llm.chat([goes_on, goes_on], TWO, use_tqdm=False, **how)
    assert [output.prompt.endswith("<|assistant|>The gate") for output in found] == [True, True]


@pytest.mark.parametrize(
    ("messages", "how", "told"),
    [
        ([], {}, "messages: is an empty list"),
        ([{"content": "no role"}], {}, "messages: .*role"),
        ([{"role": "user", "content": 5}], {}, "messages: Expected"),
        ([{"role": "user", "content": "x"}], {"chat_template": "{{ raise_exception('no x') }}"}, "no x"),
        ([{"role": "user", "content": "x"}], {"continue_final_message": True}, "cannot go with"),
    ],
)
def test_a_conversation_that_is_none_is_told(start: Start, messages: Any, how: Any, told: str) -> None:
    one = start()
    with pytest.raises(RequestRefused, match=told):
        one.llm.chat(messages, TWO, use_tqdm=False, **how)
    with pytest.raises(ConfigError, match="no Jinja template"):
        one.llm.chat([{"role": "user", "content": "x"}], TWO, chat_template="{% if %}")
    assert one.submits() == []


@pytest.mark.parametrize(
    ("messages", "kind"),
    [("hello", "str"), (["hello"], "str"), ({"role": "user", "content": "hello"}, "dict"), ([None], "NoneType")],
)
def test_what_is_no_list_of_messages_is_told_what_was_expected(start: Start, messages: Any, kind: str) -> None:
    one = start()
    with pytest.raises(TypeError, match=rf'messages are a list of {{"role": .*, not {kind}$'):
        one.llm.chat(messages, TWO, use_tqdm=False)
    assert one.submits() == []


def test_logprobs_and_reasons_have_vllms_shape(start: Start) -> None:
    one = start(rich_answer)
    text = {index: one.llm.get_tokenizer().token_bytes(index).decode() for index in (40, 41)}
    params = SamplingParams(logprobs=2, prompt_logprobs=1)
    (found,) = one.llm.generate([5, 41], params, use_tqdm=False)
    assert found.prompt_logprobs == [None, {41: Logprob(-3.0, 7, text[41]), 40: Logprob(-0.5, 1, text[40])}]
    (out,) = found.outputs
    assert (out.finish_reason, out.stop_reason, out.cumulative_logprob, out.finished()) == ("stop", "z", -2.5, True)
    assert out.logprobs == [
        {40: Logprob(-0.5, 1, text[40]), 41: Logprob(-3.0, 2, text[41])},
        {41: Logprob(-2.0, 2, text[41]), 40: Logprob(-1.0, 1, text[40])},
    ]
    assert [list(candidates) for candidates in out.logprobs] == [[40, 41], [41, 40]], "the chosen one comes first"
    (plain,) = start().llm.generate([5], TWO, use_tqdm=False)
    assert plain.prompt_logprobs is None
    assert plain.outputs[0].logprobs is plain.outputs[0].cumulative_logprob is plain.outputs[0].stop_reason is None


def test_a_model_without_tokenizer_takes_token_ids(start: Start, checkpoint, tmp_path) -> None:
    (tmp_path / "config.json").write_bytes((checkpoint / "config.json").read_bytes())
    one = start(rich_answer, model=tmp_path)
    assert one.llm.get_tokenizer() is None
    (found,) = one.llm.generate([5], SamplingParams(logprobs=1), use_tqdm=False)
    assert found.outputs[0].logprobs[0][40] == Logprob(-0.5, 1, None)
    with pytest.raises(RequestRefused, match="no tokenizer"):
        one.llm.generate("text", TWO, use_tqdm=False)
    with pytest.raises(RequestRefused, match="no chat template"):
        one.llm.chat([{"role": "user", "content": "x"}], TWO, use_tqdm=False)


def test_a_request_that_is_lost_ends_the_others(start: Start) -> None:
    def lose(instance: FakeInstance, route: bytes, submit: Submit) -> list[Any]:
        if ids_of(submit)[0] != 3:
            return []
        return [RequestEnded(request_id=submit.request_id, kind="failed", reason="no", retryable=False)]

    with pytest.raises(RequestFailed, match="no"):
        start(lose).llm.generate([[index] for index in range(10)], TWO, use_tqdm=False)


def test_a_request_that_is_lost_with_its_instance_is_begun_anew(start: Start) -> None:
    tries: dict[int, int] = {}

    def lose(instance: FakeInstance, route: bytes, submit: Submit) -> list[Any]:
        """After its first token: twice, or for ever."""
        first = ids_of(submit)[0]
        tries[first] = tries.get(first, 0) + 1
        if tries[first] > (2 if first == 1 else 99):
            return echo(instance, route, submit)
        begun = TokenChunk(request_id=submit.request_id, token_ids=(9,), text="9")
        return [begun, RequestEnded(request_id=submit.request_id, kind="failed", reason="lost", retryable=True)]

    one = start(lose)
    shown: list[RequestOutput] = []
    found = one.llm.generate([1, 5], TWO, use_tqdm=False)
    assert (found[0].outputs[0].token_ids, tries) == ([1], {1: 3})
    with pytest.raises(RequestFailed, match="lost"):
        one.llm.generate([2, 5], TWO, use_tqdm=False)
    assert tries == {1: 3, 2: 1 + RETRIES}
    with Client(one.fakes.address) as client:
        with pytest.raises(RequestFailed, match="lost"):
            client.generate([[3]], TWO, on_output=shown.append)
        with pytest.raises(InvalidParams, match="retries"):
            client.generate([[3]], TWO, retries=-1)
    assert shown == [] and tries[3] == 1


def test_a_cluster_without_instances_says_so(start: Start) -> None:
    one = start()
    one.fakes.gmanager.members = []
    with pytest.raises(RequestFailed, match="no instance is left"):
        one.llm.generate("a", TWO, use_tqdm=False)


def test_a_bar_shows_how_far_it_is(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    one = start()
    made: list[Any] = []

    class Bar:
        def __init__(self, **settings: Any) -> None:
            self.settings, self.count, self.closed = settings, 0, False
            made.append(self)

        def update(self, count: int) -> None:
            self.count += count

        def close(self) -> None:
            self.closed = True

    one.llm.generate(["a", "b"], TWO, n=2, use_tqdm=Bar)
    (bar,) = made
    assert bar.settings == {"total": 4, "desc": "Processed prompts", "dynamic_ncols": True}
    assert (bar.count, bar.closed) == (4, True)
    for use_tqdm, shown in ((True, True), (False, False)):
        with redirect_stderr(io.StringIO()) as err:
            one.llm.generate(["a", "b"], TWO, use_tqdm=use_tqdm)
        assert ("2/2" in err.getvalue()) is shown


async def test_it_works_while_a_loop_runs_in_the_calling_thread(start: Start) -> None:
    assert start().llm.generate("a", TWO, use_tqdm=False)[0].outputs[0].text == "0 1 "


def test_settings_reach_the_cluster(start: Start, checkpoint, tmp_path) -> None:
    template = tmp_path / "other.jinja"
    template.write_text("other")
    one = start(instances=3, kv_tokens=512, dtype="float32", threads=1, max_model_len=64, chat_template=template)
    assert one.settings == {
        "model": checkpoint,
        "instances": 3,
        "kv_tokens": 512,
        "dtype": "float32",
        "threads": 1,
        "max_model_len": 64,
        "gateway": False,
    }
    assert isinstance(one.llm._model.template, ChatTemplate) and one.llm._model.template.source == "other"


def test_it_ends_with_the_block_with_close_and_when_nothing_refers_to_it(start: Start) -> None:
    one = start()
    with one.llm as entered:
        assert entered is one.llm and "closed" not in one.settings
    assert one.settings["closed"] == 1
    one.llm.close()
    assert one.settings["closed"] == 1
    other = start()
    del other.llm
    gc.collect()
    assert other.settings["closed"] == 1


def test_a_bar_cannot_close_it(start: Start) -> None:
    """That waited without end; and what came after it closed nothing."""
    one = start()

    class Bar:
        def __init__(self, **_: object) -> None:
            pass

        def update(self, _: int) -> None:
            one.llm.close()

        def close(self) -> None:
            pass

    with pytest.raises(RuntimeError, match="called from on_output"):
        one.llm.generate("a", TWO, use_tqdm=Bar)
    assert one.llm.generate("a", TWO, use_tqdm=False)
    one.llm.close()
    with pytest.raises(RuntimeError, match="closed"):
        one.llm.generate("a", TWO, use_tqdm=False)


def test_bytes_are_no_prompt(start: Start) -> None:
    """Each byte was a token id."""
    for prompts in (b"text", bytearray(b"text"), memoryview(b"text")):
        with pytest.raises(TypeError, match=f"not {type(prompts).__name__}"):
            start().llm.generate(prompts, TWO, use_tqdm=False)
