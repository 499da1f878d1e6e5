"""The private channel of an rManager and its worker: nothing lost, nothing on disk, both ends notice the other's."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import zmq

from distkv.errors import LinkClosed, MalformedMessage
from distkv.wire.envelope_factory import EnvelopeFactory
from distkv.wire.messages.from_worker import Checksummed, StepResult, WorkerFailed
from distkv.wire.messages.to_worker import Checksum, Shutdown, Step
from distkv.wire.worker_pipe import CommandReader, ResultWriter, WorkerPipe

DEADLINE_S = 30.0
ENVELOPES = EnvelopeFactory("a")


async def test_commands_sent_before_the_worker_exists_arrive_in_order() -> None:
    async with WorkerPipe() as pipe:
        sent = [ENVELOPES.wrap(Step(step_id=i, seqs=()), cause="why") for i in range(500)]
        for envelope in sent:
            pipe.send(envelope)

        def work() -> list[object]:
            with CommandReader(pipe.address) as reader:
                return [reader.recv(DEADLINE_S) for _ in sent]

        assert await asyncio.to_thread(work) == sent


async def test_commands_are_answered_with_their_cause() -> None:
    async with WorkerPipe() as pipe:

        def work() -> None:
            with CommandReader(pipe.address) as reader, ResultWriter(pipe.address) as writer:
                while (command := reader.recv(DEADLINE_S)) is not None:
                    if isinstance(command.body, Shutdown):
                        return
                    assert isinstance(command.body, Step)
                    writer.send(StepResult(step_id=command.body.step_id, results=()), command.id)

        worker = asyncio.create_task(asyncio.to_thread(work))
        for i in range(50):
            command = ENVELOPES.wrap(Step(step_id=i, seqs=()))
            pipe.send(command)
            answer = await asyncio.wait_for(pipe.recv(), DEADLINE_S)
            assert answer.cause == command.id and answer.sender == "worker"
            assert answer.body == StepResult(step_id=i, results=())
        pipe.send(ENVELOPES.wrap(Shutdown()))
        await worker


async def test_every_thread_has_its_own_writer() -> None:
    async with WorkerPipe() as pipe:

        def write(checksum_id: int) -> None:
            with ResultWriter(pipe.address) as writer:
                for i in range(100):
                    writer.send(Checksummed(checksum_id=checksum_id, checksums=(i,)))

        threads = [threading.Thread(target=write, args=(i,)) for i in range(3)]
        for thread in threads:
            thread.start()
        got: dict[int, list[int]] = {0: [], 1: [], 2: []}
        ids = set()
        for _ in range(300):
            envelope = await asyncio.wait_for(pipe.recv(), DEADLINE_S)
            assert isinstance(envelope.body, Checksummed)
            got[envelope.body.checksum_id].extend(envelope.body.checksums)
            ids.add(envelope.id)
        for thread in threads:
            await asyncio.to_thread(thread.join)
        assert all(numbers == list(range(100)) for numbers in got.values())
        assert len(ids) == 300


async def test_recv_times_out() -> None:
    async with WorkerPipe() as pipe:

        def work() -> None:
            with CommandReader(pipe.address) as reader:
                assert reader.recv(0) is None
                assert reader.recv(0.01) is None

        await asyncio.to_thread(work)


async def test_the_worker_reads_what_was_sent_and_then_learns_that_the_rmanager_is_gone() -> None:
    pipe = WorkerPipe()
    connected, ended = threading.Event(), threading.Event()

    def work() -> None:
        with CommandReader(pipe.address) as reader:
            assert reader.recv(DEADLINE_S) is not None
            connected.set()
            assert ended.wait(DEADLINE_S)
            assert isinstance(reader.recv(DEADLINE_S).body, Checksum)  # type: ignore[union-attr]
            with pytest.raises(LinkClosed, match="rManager"):
                while True:
                    reader.recv(DEADLINE_S)

    worker = asyncio.create_task(asyncio.to_thread(work))
    pipe.send(ENVELOPES.wrap(Shutdown()))
    await asyncio.to_thread(connected.wait, DEADLINE_S)
    pipe.send(ENVELOPES.wrap(Checksum(checksum_id=1, slots=(1,))))
    pipe.close()
    ended.set()
    await worker


def test_a_worker_whose_rmanager_is_dead_already() -> None:
    with CommandReader("ipc://@distkv-nobody") as reader, pytest.raises(LinkClosed, match="rManager"):
        for _ in range(100):
            reader.recv(DEADLINE_S)


RMANAGER = """
import asyncio, sys
from distkv.wire.messages.to_worker import Shutdown
from distkv.wire.envelope_factory import EnvelopeFactory
from distkv.wire.worker_pipe import WorkerPipe
async def main():
    async with WorkerPipe() as pipe:
        pipe.send(EnvelopeFactory("a").wrap(Shutdown()))
        print(pipe.address, flush=True)
        await pipe.recv()
asyncio.run(main())
"""


def test_a_killed_rmanager_is_noticed() -> None:
    with subprocess.Popen([sys.executable, "-c", RMANAGER], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        with CommandReader(process.stdout.readline().strip()) as reader:
            assert reader.recv(DEADLINE_S) is not None
            process.kill()
            with pytest.raises(LinkClosed):
                while True:
                    assert reader.recv(DEADLINE_S) is None


async def test_nothing_is_on_disk_and_the_name_is_a_secret() -> None:
    async with WorkerPipe() as one, WorkerPipe() as other:
        assert one.address.startswith("ipc://@distkv-")
        assert len(one.address.removeprefix("ipc://@distkv-")) == 32
        assert one.address != other.address
        names = await asyncio.to_thread(Path("/proc/net/unix").read_text, encoding="utf-8")
        assert f"@{one.address.removeprefix('ipc://@')}" in names


async def test_a_malformed_result_raises() -> None:
    async with WorkerPipe() as pipe:
        socket: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.PUSH)
        socket.connect(pipe.address + "-results")
        socket.send(b"noise")
        with pytest.raises(MalformedMessage):
            await asyncio.wait_for(pipe.recv(), DEADLINE_S)
        socket.close(0)


async def test_closing_wakes_the_reader() -> None:
    pipe = WorkerPipe()
    waiting = asyncio.ensure_future(pipe.recv())
    await asyncio.sleep(0)
    pipe.abort()
    pipe.close()
    with pytest.raises(LinkClosed):
        await waiting
    pipe.send(ENVELOPES.wrap(Shutdown()))


async def test_last_words_arrive_though_the_writer_closes_at_once() -> None:
    async with WorkerPipe() as pipe:

        def work() -> None:
            with ResultWriter(pipe.address) as writer:
                writer.send(WorkerFailed(reason="out of memory"))

        await asyncio.to_thread(work)
        assert (await asyncio.wait_for(pipe.recv(), DEADLINE_S)).body == WorkerFailed(reason="out of memory")
