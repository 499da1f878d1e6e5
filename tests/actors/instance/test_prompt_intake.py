"""PromptIntake: requests wait for their token ids, and a cancel may be faster."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from structlog.testing import capture_logs

from distkv.actors.instance import prompt_intake as intake_module
from distkv.actors.instance.grammars import Grammars
from distkv.actors.instance.prompt_intake import MAX_THREADS, PromptIntake
from distkv.control import commands as c
from distkv.text.tokenizer import TextTooLong
from distkv.types import SamplingParams
from distkv.wire.messages.to_client import RequestEnded
from distkv.wire.messages.to_rmanager import Cancel, Submit
from tests.threads import NO_THREAD, no_threads
from tests.token_ids import prompt_fields
from tests.waiting import until

DEADLINE_S = 30.0
MOST = 10_000
FEW = 1000
VOCAB = 1 << 14


class SlowTokenizer:
    """Encodes when told; counts how many threads do."""

    def __init__(self) -> None:
        self.go = threading.Event()
        self.started = threading.Semaphore(0)
        self.running = self.most = 0
        self._lock = threading.Lock()

    def encode(self, text: str, *, most: int = MOST, add_special_tokens: bool = True) -> list[int]:
        if len(text) > most:
            raise TextTooLong(len(text), is_exact=True)
        with self._lock:
            self.running += 1
            self.most = max(self.most, self.running)
        self.started.release()
        assert self.go.wait(DEADLINE_S)
        with self._lock:
            self.running -= 1
        return [len(text)]


class Recorder:
    """An intake and what it hands on."""

    def __init__(self, tokenizer: SlowTokenizer | None, tasks: asyncio.TaskGroup) -> None:
        self.events: list[c.Event] = []
        self.answers: list[RequestEnded] = []
        self.arrived = asyncio.Event()
        self.intake = PromptIntake(
            tokenizer, tasks, self._handle, self._answer, lambda: MOST, VOCAB, Grammars(lambda body, cause: None)
        )  # type: ignore[arg-type]

    def _handle(self, event: c.Event, cause: str) -> None:
        assert cause == "why"
        self.events.append(event)
        self.arrived.set()

    def _answer(self, answer: c.Answer, cause: str) -> None:
        assert isinstance(answer.body, RequestEnded) and cause == "why"
        self.answers.append(answer.body)
        self.arrived.set()

    def submit(self, name: str, prompt: str | tuple[int, ...], route: bytes = b"x", **params: Any) -> None:
        self.intake.submit(
            Submit(request_id=name, params=SamplingParams(**params), **prompt_fields(prompt)), route, "why"
        )

    async def read_out(self) -> None:
        """Until no prompt is being read."""
        await until(lambda: not self.intake._num_reading)

    async def handled(self, count: int) -> None:
        async with asyncio.timeout(DEADLINE_S):
            while len(self.events) < count:
                self.arrived.clear()
                await self.arrived.wait()


@pytest.fixture
async def tokenizer() -> AsyncIterator[SlowTokenizer]:
    tokenizer = SlowTokenizer()
    yield tokenizer
    tokenizer.go.set()


async def test_token_ids_need_no_time(tokenizer: SlowTokenizer, tasks: asyncio.TaskGroup) -> None:
    recorder = Recorder(tokenizer, tasks)
    recorder.submit("r", (1, 2, 3))
    (event,) = recorder.events
    assert isinstance(event, c.Tokenized) and list(event.token_ids) == [1, 2, 3]
    assert not recorder.intake.cancel("r", b"x"), "it is cancelled where it is handled"


async def test_bad_words_become_token_ids_also_where_the_prompt_is_some(
    tokenizer: SlowTokenizer, tasks: asyncio.TaskGroup
) -> None:
    recorder = Recorder(tokenizer, tasks)
    recorder.submit("ids", (1, 2, 3), bad_words=("word",))
    assert recorder.events == []
    tokenizer.go.set()
    await recorder.handled(1)
    recorder.submit("text", "a text", bad_words=("word", "longer"))
    await recorder.handled(2)
    ids, text = recorder.events
    assert isinstance(ids, c.Tokenized) and (list(ids.token_ids), ids.bad_words) == ([1, 2, 3], ((4,), (5,)))
    assert isinstance(text, c.Tokenized) and (list(text.token_ids), text.bad_words) == ([6], ((4,), (5,), (6,), (7,)))


async def test_bad_words_that_are_none_are_refused(tasks: asyncio.TaskGroup) -> None:
    class Nothing(SlowTokenizer):
        def encode(self, text: str, *, most: int = MOST, add_special_tokens: bool = True) -> list[int]:
            return []

    recorder = Recorder(Nothing(), tasks)
    recorder.submit("r", (1, 2, 3), bad_words=("word",))
    async with asyncio.timeout(DEADLINE_S):
        await recorder.arrived.wait()
    (ended,) = recorder.answers
    assert (ended.kind, ended.reason[:10]) == ("refused", "bad_words:")
    recorder = Recorder(None, tasks)
    recorder.submit("r", (1, 2, 3), bad_words=("word",))
    assert recorder.answers[0].reason.startswith("the model has no tokenizer: send the prompt as token ids, without")


@pytest.mark.parametrize("wrong", [-1, VOCAB, 2**31 - 1])
@pytest.mark.parametrize("length", [1, 5 * FEW])
async def test_a_token_that_the_model_does_not_know_is_refused_by_name(
    tasks: asyncio.TaskGroup, monkeypatch: pytest.MonkeyPatch, length: int, wrong: int
) -> None:
    monkeypatch.setattr(intake_module, "MAX_CHECKED", FEW)
    recorder = Recorder(None, tasks)
    recorder.submit("r", (1,) * (length - 1) + (wrong,))
    recorder.submit("fine", (0, VOCAB - 1) * (length // 2 + 1))
    await recorder.handled(1)
    (refused,) = recorder.answers
    assert (refused.request_id, refused.kind) == ("r", "refused")
    assert refused.reason == f"prompt: token ids must be in [0, {VOCAB}), it has {wrong}"
    (event,) = recorder.events
    assert isinstance(event, c.Tokenized) and event.submit.request_id == "fine"


async def test_very_many_token_ids_take_several_turns_of_the_event_loop(
    tasks: asyncio.TaskGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(intake_module, "MAX_CHECKED", FEW)
    recorder = Recorder(None, tasks)
    recorder.submit("r", (1,) * (3 * FEW))
    recorder.submit("r", (1,) * (3 * FEW))
    assert [ended.reason for ended in recorder.answers] == ["a request with the id 'r' is running already"]
    assert recorder.intake.cancel("r", b"x"), "it is being read"
    turns = 0
    while not recorder.events:
        await asyncio.sleep(0)
        turns += 1
    assert turns >= 3
    assert [type(event) for event in recorder.events] == [c.Tokenized, c.ClientRequested]


async def test_text_is_tokenized_in_few_threads(tokenizer: SlowTokenizer, tasks: asyncio.TaskGroup) -> None:
    recorder = Recorder(tokenizer, tasks)
    for index in range(5):
        recorder.submit(f"r{index}", "text" * index)
    await asyncio.to_thread(tokenizer.started.acquire, timeout=DEADLINE_S)
    assert recorder.events == []
    tokenizer.go.set()
    await recorder.handled(5)
    lengths = {e.submit.request_id: tuple(e.token_ids) for e in recorder.events if isinstance(e, c.Tokenized)}
    assert lengths == {f"r{index}": (4 * index,) for index in range(5)}
    assert tokenizer.most <= MAX_THREADS


async def test_a_cancel_that_overtakes_comes_right_after_the_request(
    tokenizer: SlowTokenizer, tasks: asyncio.TaskGroup
) -> None:
    recorder = Recorder(tokenizer, tasks)
    recorder.submit("r", "text")
    recorder.submit("r", "texts", route=b"another client")
    assert recorder.intake.cancel("r", b"x")
    assert not recorder.intake.cancel("r", b"a stranger")
    tokenizer.go.set()
    await recorder.handled(3)
    ours = [e for e in recorder.events if isinstance(e, c.Tokenized | c.ClientRequested) and e.route == b"x"]
    assert isinstance(ours[0], c.Tokenized)
    assert ours[1] == c.ClientRequested(b"x", Cancel(request_id="r"))
    assert len([e for e in recorder.events if isinstance(e, c.ClientRequested)]) == 1
    assert not recorder.intake.cancel("r", b"x")


async def test_a_cancel_that_comes_as_tokenization_ends_is_not_swallowed(
    tokenizer: SlowTokenizer, tasks: asyncio.TaskGroup
) -> None:
    """While the request is being handled it is no longer the intake's."""
    recorder = Recorder(tokenizer, tasks)
    taken: list[bool] = []
    keep = recorder.events.append

    def handle_and_cancel(event: c.Event, cause: str) -> None:
        keep(event)
        recorder.arrived.set()
        taken.append(recorder.intake.cancel("r", b"x"))

    recorder.intake._handle = handle_and_cancel
    recorder.submit("r", "text")
    tokenizer.go.set()
    await recorder.handled(1)
    assert taken == [False]


async def test_the_same_name_twice_is_refused(tokenizer: SlowTokenizer, tasks: asyncio.TaskGroup) -> None:
    recorder = Recorder(tokenizer, tasks)
    recorder.submit("r", "text")
    recorder.submit("r", "text")
    (ended,) = recorder.answers
    assert ended.kind == "refused" and "running already" in ended.reason
    tokenizer.go.set()
    await recorder.handled(1)
    assert len(recorder.events) == 1


async def test_the_name_of_one_that_was_cancelled_may_be_used_again(
    tokenizer: SlowTokenizer, tasks: asyncio.TaskGroup
) -> None:
    """At once, while its prompt is still read; of the first one nothing is heard."""
    recorder = Recorder(tokenizer, tasks)
    recorder.submit("r1", "a")
    assert recorder.intake.cancel("r1", b"x")
    recorder.submit("r1", "other")
    tokenizer.go.set()
    await recorder.read_out()
    (event,) = recorder.events
    assert isinstance(event, c.Tokenized) and list(event.token_ids) == [5]
    recorder.submit("r1", "later")
    await recorder.handled(2)
    assert not recorder.answers


async def test_its_name_may_come_back_with_token_ids(tokenizer: SlowTokenizer, tasks: asyncio.TaskGroup) -> None:
    recorder = Recorder(tokenizer, tasks)
    recorder.submit("r1", "a")
    assert recorder.intake.cancel("r1", b"x")
    recorder.submit("r1", (1, 2, 3))
    tokenizer.go.set()
    await recorder.read_out()
    (event,) = recorder.events
    assert isinstance(event, c.Tokenized) and list(event.token_ids) == [1, 2, 3] and not recorder.answers
    assert not recorder.intake.cancel("r1", b"x"), "it is not being read"


async def test_those_that_were_cancelled_count_until_they_are_read(
    tokenizer: SlowTokenizer, tasks: asyncio.TaskGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(intake_module, "MAX_READING", 3)
    recorder = Recorder(tokenizer, tasks)
    for _ in range(5):
        recorder.submit("r1", "a")
        recorder.intake.cancel("r1", b"x")
    assert [one.retryable for one in recorder.answers] == [True, True]
    tokenizer.go.set()
    await recorder.read_out()
    recorder.submit("r2", "b")
    await recorder.handled(1)


async def test_too_many_are_turned_away_to_come_back(
    tokenizer: SlowTokenizer, monkeypatch: pytest.MonkeyPatch, tasks: asyncio.TaskGroup
) -> None:
    monkeypatch.setattr(intake_module, "MAX_READING", 2)
    recorder = Recorder(tokenizer, tasks)
    for index in range(3):
        recorder.submit(f"r{index}", "text")
    (ended,) = recorder.answers
    assert (ended.request_id, ended.kind, ended.retryable) == ("r2", "failed", True)
    tokenizer.go.set()
    await recorder.handled(2)


async def test_a_model_without_a_tokenizer_takes_token_ids_only(tasks: asyncio.TaskGroup) -> None:
    recorder = Recorder(None, tasks)
    recorder.submit("r", "text")
    (ended,) = recorder.answers
    assert ended.kind == "refused" and "send the prompt as token ids" in ended.reason
    assert recorder.events == []


class BrokenTokenizer:
    def encode(self, text: str, *, most: int) -> list[int]:
        if len(text) > most:
            raise TextTooLong(len(text), is_exact=True)
        raise Exception("no unknown token")


async def test_what_the_tokenizer_cannot_encode_is_refused(tasks: asyncio.TaskGroup) -> None:
    recorder = Recorder(BrokenTokenizer(), tasks)
    recorder.submit("r", "text")
    await recorder.read_out()
    assert recorder.answers[0].kind == "refused" and "no unknown token" in recorder.answers[0].reason


async def test_what_there_is_no_thread_for_may_be_sent_again(
    tokenizer: SlowTokenizer, tasks: asyncio.TaskGroup
) -> None:
    recorder = Recorder(tokenizer, tasks)
    tokenizer.go.set()
    # The loop keeps its threads: none is idle in a process that has just begun.
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
    with no_threads():
        recorder.submit("r", "text")
        await recorder.read_out()
    (answer,) = recorder.answers
    assert (answer.kind, answer.retryable) == ("failed", True) and NO_THREAD in answer.reason
    recorder.submit("again", "text")
    await recorder.handled(1)


async def test_a_mistake_of_ours_is_not_called_the_users(
    tokenizer: SlowTokenizer, tasks: asyncio.TaskGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It costs that request, says so, and is logged."""
    recorder = Recorder(tokenizer, tasks)

    def mistaken(_self: PromptIntake, _ids: object) -> str:
        raise KeyError("x")

    monkeypatch.setattr(PromptIntake, "_outside", mistaken)
    tokenizer.go.set()
    with capture_logs() as logged:
        recorder.submit("r", "text")
        await recorder.read_out()
    assert recorder.answers[0].kind == "failed" and "its log says how" in recorder.answers[0].reason
    assert [(one["event"], one["request_id"]) for one in logged] == [("a prompt was not read", "r")]


async def test_what_the_cluster_cannot_hold_is_refused(tokenizer: SlowTokenizer, tasks: asyncio.TaskGroup) -> None:
    tokenizer.go.set()
    recorder = Recorder(tokenizer, tasks)
    max_tokens = SamplingParams().max_tokens
    recorder.submit("long", "x" * (MOST - max_tokens + 1))
    recorder.submit("fits", "x" * (MOST - max_tokens))
    await recorder.handled(1)
    (refused,) = recorder.answers
    assert (refused.request_id, refused.kind, refused.retryable) == ("long", "refused", False)
    assert (refused.needed_tokens, refused.pool_tokens) == (MOST + 1, MOST)
    assert f"maximum context length is {MOST} tokens" in refused.reason
    assert f"your prompt contains {MOST - max_tokens + 1} input tokens" in refused.reason


async def test_texts_that_wait_have_a_bound(
    tokenizer: SlowTokenizer, tasks: asyncio.TaskGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(intake_module, "MAX_WAITING_BYTES", 10)
    recorder = Recorder(tokenizer, tasks)
    recorder.submit("a", "x" * 8)
    recorder.submit("b", "x" * 8)
    (refused,) = recorder.answers
    assert (refused.request_id, refused.retryable) == ("b", True) and "8 bytes" in refused.reason
    tokenizer.go.set()
    await recorder.handled(1)
    recorder.submit("c", "x" * 8)
    await recorder.handled(2)


async def test_a_drain_hands_back_what_is_being_tokenized(tokenizer: SlowTokenizer, tasks: asyncio.TaskGroup) -> None:
    """At once, once, whatever its tokens turn out to be; and what comes after that."""
    recorder = Recorder(tokenizer, tasks)
    recorder.submit("r", "text")
    await asyncio.to_thread(tokenizer.started.acquire, timeout=DEADLINE_S)
    recorder.submit("overlong", "x" * (MOST + 1))
    recorder.intake.close("instance i0 is draining")
    recorder.submit("late", "text")
    recorder.submit("r", "text")
    tokenizer.go.set()
    recorder.submit("ids", (1,))
    await recorder.handled(1)
    async with asyncio.timeout(DEADLINE_S):
        await asyncio.gather(*(task for task in asyncio.all_tasks() if task.get_name().startswith("tokenize")))
    assert [event.submit.request_id for event in recorder.events if isinstance(event, c.Tokenized)] == ["ids"]
    answers = [(answer.request_id, answer.retryable, answer.reason) for answer in recorder.answers]
    assert answers == [(name, True, "instance i0 is draining") for name in ("r", "overlong", "late", "r")]
    assert all(answer.is_draining for answer in recorder.answers)
