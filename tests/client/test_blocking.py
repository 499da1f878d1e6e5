from __future__ import annotations

import asyncio
import gc
import multiprocessing
import threading

import pytest

from distkv import Client, ClusterUnreachable, InvalidParams, RequestRefused, SamplingParams
from distkv.client.instances import directory
from distkv.wire.messages.to_rmanager import Cancel, Submit
from tests.client.fakes import count_up, first_only, refuse

FOUR = SamplingParams(max_tokens=4)


def test_the_blocking_client_does_what_the_other_does(background):
    cluster = background.start(count_up)
    with Client(cluster.address) as client:
        assert client.submit("x", FOUR).text == "0 1 2 3 "
        assert [output.text for output in client.generate(["x", "y"], SamplingParams(max_tokens=1))] == ["0 ", "0 "]
        assert "".join(chunk.text for chunk in client.stream("x", FOUR)) == "0 1 2 3 "
        assert client.status()["instances"][0]["instance_id"] == "i0"
        assert client.statuses()[0].instance.counters.preemptions == 9
        assert client.members()[0].instance_id == "i0"


def test_one_text_is_one_prompt(background):
    cluster = background.start(count_up)
    with Client(cluster.address) as client:
        assert len(client.generate("several letters", FOUR)) == 1


async def test_it_works_while_a_loop_runs_in_the_calling_thread(background):
    cluster = background.start(count_up)
    assert asyncio.get_running_loop().is_running()
    with Client(cluster.address) as client:
        assert client.submit("x", FOUR).finish_reason == "length"


def test_closing_a_stream_cancels_the_request(background):
    cluster = background.start(first_only)
    with Client(cluster.address) as client:
        stream = client.stream("x", FOUR, request_id="left")
        next(stream)
        stream.close()
        (cancel,) = background.loop.call(cluster.instances[0].wait_for(Cancel))
    assert cancel.request_id == "left"


def test_leaving_the_loop_cancels_the_request(background):
    cluster = background.start(first_only)
    with Client(cluster.address) as client:
        for _ in client.stream("x", FOUR, request_id="left"):
            break
        (cancel,) = background.loop.call(cluster.instances[0].wait_for(Cancel))
    assert cancel.request_id == "left"


def test_errors_come_out_as_they_are(background, monkeypatch):
    cluster = background.start(refuse)
    with Client(cluster.address) as client:
        with pytest.raises(RequestRefused, match="9 tokens"):
            client.submit("x")
        with pytest.raises(RequestRefused):
            list(client.stream("x"))
        with pytest.raises(InvalidParams):
            client.submit([])
        with pytest.raises(TypeError):
            client.generate({"prompt": "x"})
        for prompts in (b"x", bytearray(b"x"), memoryview(b"x"), [b"x"]):
            with pytest.raises(TypeError, match=f"not {type(prompts[0] if prompts == [b'x'] else prompts).__name__}"):
                client.generate(prompts)
    monkeypatch.setattr(directory, "FIRST_CONTACT_S", 0.05)
    with Client("127.0.0.1:9") as client, pytest.raises(ClusterUnreachable):
        client.status()


def test_a_call_from_on_output_says_that_it_cannot_be(background):
    """It waited without end, and so did `close`."""
    cluster = background.start(count_up)
    with Client(cluster.address) as client:
        for use in (client.status, client.close, lambda: next(client.stream("y"))):
            with pytest.raises(RuntimeError, match="called from on_output"):
                client.generate(["x"], FOUR, on_output=lambda _, use=use: use())
        with Client(cluster.address) as other:
            assert client.generate(["x"], FOUR, on_output=lambda _: other.status())


def test_a_closed_client_says_so_and_leaves_no_thread(background):
    cluster = background.start(first_only)
    client = Client(cluster.address)
    stream = client.stream("x", FOUR)
    next(stream)
    client.close()
    client.close()
    with pytest.raises(Exception, match="closed"):
        next(stream)
    with pytest.raises(RuntimeError, match="closed"):
        client.submit("x")
    # A fixture of the session may have a client of another cluster.
    assert not [thread for thread in threading.enumerate() if thread.name == f"distkv client {cluster.address}"]
    background.loop.call(cluster.instances[0].wait_for(Submit))


def _errors_in_child(client, stream, answers):
    for use in (lambda: client.submit("x", FOUR), client.status, lambda: next(stream)):
        try:
            use()
        except RuntimeError as error:
            answers.send(str(error))
    client.close()
    answers.send("closed")


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_process_is_told_to_make_its_own(background):
    """It has the client, and not the thread that does its work: all of it waited without end."""
    cluster = background.start(first_only)
    with Client(cluster.address) as client:
        stream = client.stream("x", FOUR)
        next(stream)
        answers, theirs = multiprocessing.Pipe(duplex=False)
        child = multiprocessing.get_context("fork").Process(target=_errors_in_child, args=(client, stream, theirs))
        child.start()
        try:
            found = []
            while len(found) < 4 and answers.poll(20):
                found.append(answers.recv())
        finally:
            child.kill()
            child.join()
            answers.close()
            theirs.close()
        assert len(found) == 4 and all("forked" in one for one in found[:3]) and found[3] == "closed"
        assert client.status()["instances"], "its own goes on"


def test_one_that_is_forgotten_leaves_nothing(background):
    """Each had a thread and 13 descriptors until the program ended."""
    cluster = background.start(first_only)
    client = Client(cluster.address)
    (thread,) = (one for one in threading.enumerate() if one.name == f"distkv client {cluster.address}")
    stream = client.stream("x", FOUR, request_id="forgotten")
    del client
    gc.collect()
    assert next(stream).text == "0 ", "a stream needs it"
    del stream
    gc.collect()
    (cancel,) = background.loop.call(cluster.instances[0].wait_for(Cancel))
    assert cancel.request_id == "forgotten"
    thread.join(20)
    assert not thread.is_alive()
