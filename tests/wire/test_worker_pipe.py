"""The private channel of an rManager and its worker: nothing lost, both ends notice the other's."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
import threading

import pytest
import uvloop

from distkv.checksums import pack, unpack
from distkv.errors import LinkClosed, MalformedMessage
from distkv.wire import worker_pipe
from distkv.wire.codec import encode_envelope
from distkv.wire.envelope_factory import EnvelopeFactory
from distkv.wire.messages.from_worker import Checksummed, StepResult, WorkerFailed
from distkv.wire.messages.to_worker import Checksum, Shutdown, Step
from distkv.wire.worker_pipe import WorkerEnd, WorkerPipe

DEADLINE_S = 30.0
ENVELOPES = EnvelopeFactory("a")


async def test_commands_sent_before_the_worker_reads_arrive_in_order() -> None:
    """More than the system keeps between two ends."""
    async with WorkerPipe() as pipe:
        sent = [ENVELOPES.wrap(Checksum(checksum_id=i, slots=tuple(range(400))), cause="why") for i in range(1000)]
        for envelope in sent:
            pipe.send(envelope)

        def work() -> list[object]:
            end = WorkerEnd(pipe.worker_end)
            return [end.recv(DEADLINE_S) for _ in sent]

        assert await asyncio.to_thread(work) == sent


async def test_a_message_of_megabytes_passes_both_ways() -> None:
    async with WorkerPipe() as pipe:
        command = ENVELOPES.wrap(Checksum(checksum_id=1, slots=tuple(range(1_000_000))))
        result = Checksummed(checksum_id=1, checksums=pack(range(2**63, 2**63 + 500_000)))

        def work() -> object:
            end = WorkerEnd(pipe.worker_end)
            came = end.recv(DEADLINE_S)
            end.send(result)
            return came

        pipe.send(command)
        worker = asyncio.create_task(asyncio.to_thread(work))
        assert (await asyncio.wait_for(pipe.recv(), DEADLINE_S)).body == result
        assert await worker == command


async def _answered() -> None:
    async with WorkerPipe() as pipe:

        def work() -> None:
            end = WorkerEnd(pipe.worker_end)
            while (command := end.recv(DEADLINE_S)) is not None:
                if isinstance(command.body, Shutdown):
                    return
                assert isinstance(command.body, Step)
                end.send(StepResult(step_id=command.body.step_id, results=()), command.id)

        worker = asyncio.create_task(asyncio.to_thread(work))
        for i in range(50):
            command = ENVELOPES.wrap(Step(step_id=i, seqs=()))
            pipe.send(command)
            answer = await asyncio.wait_for(pipe.recv(), DEADLINE_S)
            assert answer.cause == command.id and answer.sender == "worker"
            assert answer.body == StepResult(step_id=i, results=())
        pipe.send(ENVELOPES.wrap(Shutdown()))
        await worker


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run])
def test_commands_are_answered_with_their_cause(run) -> None:  # type: ignore[no-untyped-def]
    run(_answered())


async def test_results_of_many_threads_do_not_mix(monkeypatch: pytest.MonkeyPatch) -> None:
    """Though more wait than are read before somebody takes them."""
    monkeypatch.setattr(worker_pipe, "_MOST_WAITING", 5)
    async with WorkerPipe() as pipe:
        end = WorkerEnd(pipe.worker_end)

        def write(checksum_id: int) -> None:
            for i in range(100):
                end.send(Checksummed(checksum_id=checksum_id, checksums=pack((i,) * 300)))

        threads = [threading.Thread(target=write, args=(i,)) for i in range(3)]
        for thread in threads:
            thread.start()
        got: dict[int, list[int]] = {0: [], 1: [], 2: []}
        ids = set()
        for _ in range(300):
            envelope = await asyncio.wait_for(pipe.recv(), DEADLINE_S)
            assert isinstance(envelope.body, Checksummed)
            got[envelope.body.checksum_id].append(unpack(envelope.body.checksums)[0])
            ids.add(envelope.id)
        for thread in threads:
            await asyncio.to_thread(thread.join)
        assert all(numbers == list(range(100)) for numbers in got.values())
        assert len(ids) == 300


async def test_recv_times_out() -> None:
    async with WorkerPipe() as pipe:
        end = WorkerEnd(pipe.worker_end)
        assert end.recv(0) is None
        assert end.recv(0.01) is None


async def test_the_worker_reads_what_was_sent_and_then_learns_that_the_rmanager_is_gone() -> None:
    pipe = WorkerPipe()
    end = WorkerEnd(socket.socket(fileno=os.dup(pipe.worker_end.fileno())))
    pipe.send(ENVELOPES.wrap(Shutdown()))
    pipe.send(ENVELOPES.wrap(Checksum(checksum_id=1, slots=(1,))))
    end.send(WorkerFailed(reason="nobody reads this"))
    pipe.close()
    for kind in (Shutdown, Checksum):
        came = end.recv(DEADLINE_S)
        assert came is not None and isinstance(came.body, kind)
    for _ in range(2):
        with pytest.raises(LinkClosed, match="rManager"):
            end.recv(DEADLINE_S)
    end.send(WorkerFailed(reason="nor this"))
    end.close()


RMANAGER = """
import asyncio, subprocess, sys, time
from distkv.wire.messages.to_worker import Shutdown
from distkv.wire.envelope_factory import EnvelopeFactory
from distkv.wire.worker_pipe import WorkerPipe
WORKER = '''
import socket, sys
from distkv.errors import LinkClosed
from distkv.wire.worker_pipe import WorkerEnd
with WorkerEnd(socket.socket(fileno=int(sys.argv[1]))) as end:
    assert end.recv(30) is not None
    print("ready", flush=True)
    try:
        while end.recv(30) is None: pass
    except LinkClosed as closed:
        print(closed, flush=True)
'''
async def main():
    async with WorkerPipe() as pipe:
        pipe.send(EnvelopeFactory("a").wrap(Shutdown()))
        fd = pipe.worker_end.fileno()
        subprocess.Popen([sys.executable, "-c", WORKER, str(fd)], pass_fds=(fd,))
        pipe.worker_end.close()
        await pipe.recv()
asyncio.run(main())
"""


def test_a_killed_rmanager_is_noticed() -> None:
    with subprocess.Popen([sys.executable, "-c", RMANAGER], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.kill()
        assert "rManager" in process.stdout.readline()


async def test_processes_that_a_worker_starts_do_not_hold_its_end() -> None:
    async with WorkerPipe() as pipe:
        pipe.worker_end.set_inheritable(True)
        WorkerEnd(pipe.worker_end)
        assert not pipe.worker_end.get_inheritable()


@pytest.mark.parametrize("noise", [b"\5\0\0\0noise", b"\xff" * 10], ids=["no message", "too long"])
async def test_a_malformed_result_raises(noise: bytes) -> None:
    async with WorkerPipe() as pipe:
        pipe.worker_end.sendall(noise)
        with pytest.raises(MalformedMessage):
            await asyncio.wait_for(pipe.recv(), DEADLINE_S)


async def test_bytes_may_come_one_by_one() -> None:
    async with WorkerPipe() as pipe:
        body = encode_envelope(EnvelopeFactory("worker").wrap(StepResult(step_id=7, results=())))
        waiting = asyncio.ensure_future(pipe.recv())
        for byte in len(body).to_bytes(4, "little") + body:
            pipe.worker_end.sendall(bytes([byte]))
            await asyncio.sleep(0)
        assert (await asyncio.wait_for(waiting, DEADLINE_S)).body == StepResult(step_id=7, results=())


async def test_closing_wakes_the_reader() -> None:
    pipe = WorkerPipe()
    waiting = asyncio.ensure_future(pipe.recv())
    await asyncio.sleep(0)
    pipe.close()
    pipe.close()
    with pytest.raises(LinkClosed):
        await waiting
    pipe.send(ENVELOPES.wrap(Shutdown()))


async def test_last_words_arrive_though_the_worker_ends_at_once() -> None:
    async with WorkerPipe() as pipe:
        with WorkerEnd(pipe.worker_end) as end:
            end.send(WorkerFailed(reason="out of memory"))
        assert (await asyncio.wait_for(pipe.recv(), DEADLINE_S)).body == WorkerFailed(reason="out of memory")
