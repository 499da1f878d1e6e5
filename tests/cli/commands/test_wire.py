"""`distkv wire decode`: every message, however its bytes were kept, and nothing private unless asked for."""

from __future__ import annotations

import asyncio
import base64
import io
import json
import struct
import sys

import msgpack
import pytest

from distkv.cli.exit_codes import run
from distkv.cli.main import command
from distkv.wire.channel import ClientChannel, ServerChannel
from distkv.wire.inboxes import CLIENT_CONNECTION, RMANAGER_PORT
from distkv.wire.links.streams.frames import MAGIC
from tests.waiting import soon
from tests.wire.golden import CURRENT, load
from tests.wire.golden.examples import ENVELOPES

GOLDEN = {name: bytes.fromhex(golden["hex"]) for name, golden in load(CURRENT).items()}
SUBMIT, CANCEL, ATTEND = GOLDEN["Submit"], GOLDEN["Cancel"], GOLDEN["Attend"]


@pytest.fixture
def decode(tmp_path, capsys):
    """Writes a file, runs `distkv wire decode FILE`, and returns what it printed as objects."""

    def run_on(given: bytes, *flags: str) -> list[dict]:
        path = tmp_path / "capture"
        path.write_bytes(given)
        code = run(command, ["wire", "decode", str(path), *flags])
        captured = capsys.readouterr()
        assert code == 0, captured.err
        return objects(captured.out)

    return run_on


def objects(text: str) -> list[dict]:
    found, decoder = [], json.JSONDecoder()
    while text := text.lstrip():
        one, end = decoder.raw_decode(text)
        found.append(one)
        text = text[end:]
    return found


def tensor_frame(header: bytes, body: bytes) -> bytes:
    return struct.pack("<IIQ", MAGIC, len(header), len(body)) + header + body


@pytest.mark.parametrize("name", GOLDEN)
def test_every_message_is_shown(decode, name):
    (shown,) = decode(GOLDEN[name])
    kind = name.partition("/")[0]
    assert shown["type"] == kind
    assert shown["direction"] and shown["defined_in"].startswith("distkv.wire.messages.")
    assert shown["size_bytes"] == len(GOLDEN[name])
    assert "unknown_fields" not in shown


def test_arrays_get_the_names_of_their_fields(decode):
    (shown,) = decode(GOLDEN["Granted"])
    assert shown["fields"]["epoch"] == {"incarnation": 1763690001000000000, "counter": 3}
    assert (shown["sender"], shown["direction"]) == ("i1", ["peer → rManager, in answer"])


@pytest.mark.parametrize(
    "written",
    [
        SUBMIT,
        SUBMIT.hex().encode(),
        SUBMIT.hex(" ").encode() + b"\n",
        b"0x" + SUBMIT.hex(":").upper().encode(),
        base64.b64encode(SUBMIT),
        base64.encodebytes(SUBMIT),
    ],
    ids=["raw", "hex", "hex with spaces", "hex with colons", "base64", "wrapped base64"],
)
def test_the_way_of_writing_is_detected(decode, written):
    (shown,) = decode(written)
    assert shown["type"] == "Submit"


def test_the_way_of_writing_can_be_given(decode, tmp_path, capsys):
    (shown,) = decode(SUBMIT.hex().encode(), "--format", "hex")
    assert shown["type"] == "Submit"
    path = tmp_path / "raw"
    path.write_bytes(SUBMIT)
    assert run(command, ["wire", "decode", str(path), "--format", "hex"]) == 2
    assert "it is no hex" in capsys.readouterr().err


def test_standard_input(monkeypatch, capsys):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(CANCEL)))
    assert run(command, ["wire", "decode"]) == 0
    assert json.loads(capsys.readouterr().out)["fields"] == {"request_id": "req-1"}


def test_one_hex_per_line_and_frames_one_after_the_other(decode):
    lines = "\n".join(one.hex() for one in GOLDEN.values()).encode()
    names = [name.partition("/")[0] for name in GOLDEN]
    assert [one["type"] for one in decode(lines)] == names
    several = decode(b"".join(GOLDEN.values()))
    assert [one["type"] for one in several] == names
    assert several[1]["at_byte"] == several[0]["size_bytes"]


async def test_a_recorded_zeromq_stream(decode):
    recorded, relayed = bytearray(), asyncio.Event()

    async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, into: bytearray | None) -> None:
        while given := await reader.read(65536):
            if into is not None:
                into += given
            writer.write(given)
        writer.close()

    async def accepted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection("127.0.0.1", int(server.address.rpartition(":")[2]))
        try:
            await asyncio.gather(relay(reader, back, recorded), relay(there, writer, None))
        finally:
            relayed.set()

    async with ServerChannel.bind("tcp://127.0.0.1:0", RMANAGER_PORT) as server:
        middle = await asyncio.start_server(accepted, "127.0.0.1", 0)
        address = f"tcp://127.0.0.1:{middle.sockets[0].getsockname()[1]}"
        async with middle:
            async with ClientChannel.connect(address, CLIENT_CONNECTION) as client:
                for name in ("Cancel", "Submit", "KeepAlive"):
                    client.send(ENVELOPES[name])
                    assert (await server.recv())[1] == ENVELOPES[name]
            await soon(relayed.wait())
    stream = bytes(recorded)
    assert stream[0] == 0xFF and len(SUBMIT) > 255, "there is a greeting, and a long frame"
    assert [one["type"] for one in decode(stream)] == ["Cancel", "Submit", "KeepAlive"]
    # Wherever a frame begins will do, so a stream may be recorded from its middle.
    assert [one["type"] for one in decode(stream[stream.index(CANCEL) - 2 :])] == ["Cancel", "Submit", "KeepAlive"]


def test_tensor_frames_are_shown_without_their_tensors(decode):
    stream = tensor_frame(ATTEND, bytes(4096)) + tensor_frame(GOLDEN["Partials"], b"\x84" * 64)
    first, second = decode(stream)
    assert (first["type"], first["tensor_bytes"], first["fields"]) == ("Attend", 4096, {"step_id": 512, "layer": 3})
    assert (second["type"], second["tensor_bytes"]) == ("Partials", 64)
    (cut,) = decode(tensor_frame(ATTEND, bytes(4096))[:100])
    assert (cut["type"], cut["tensor_bytes"]) == ("Attend", 4096)


def test_what_users_wrote_and_got_is_shown_only_when_asked_for(decode):
    private = ["Zwölf", "jagen", "70000", "-2.5"]
    given = SUBMIT + GOLDEN["Submit/ids"] + GOLDEN["TokenChunk"] + GOLDEN["Step"]
    hidden = json.dumps(decode(given), ensure_ascii=False)
    assert not [word for word in private if word in hidden]
    assert "hidden: 16 characters" in hidden
    open_ = json.dumps(decode(given, "--show-private"), ensure_ascii=False)
    assert not [word for word in private if word not in open_]


def test_fields_of_other_versions_are_shown(decode):
    plain = msgpack.unpackb(GOLDEN["Granted"])
    plain["hop"] = 2
    plain["body"]["colour"] = {"b": b"\x00"}
    plain["body"]["epoch"].append("new")
    (shown,) = decode(msgpack.packb(plain))
    assert set(shown["unknown_fields"]) == {"hop", "body.colour", "body.epoch[2]"}
    assert "new" not in json.dumps(shown["unknown_fields"])
    (shown,) = decode(msgpack.packb(plain), "--show-private")
    assert shown["unknown_fields"]["body.epoch[2]"] == "new" and shown["unknown_fields"]["hop"] == 2


@pytest.mark.parametrize(
    ("given", "code", "told"),
    [
        (b"", 2, "there is nothing in it"),
        (b"\xc1", 1, "at byte 0 of 1: it is no MessagePack"),
        (b"\x93\x01\x02\x03", 1, "a message is a map, this is list"),
        (b"\x81\xa1a\x01", 1, "missing required field `id`"),
        (SUBMIT[:-1], 1, "the bytes end inside a message"),
        (CANCEL + b"\x00\x09abc", 1, f"at byte {len(CANCEL)} of {len(CANCEL) + 5}: the bytes end inside a frame, 6"),
        (tensor_frame(CANCEL, b""), 1, "at byte 0"),
        (b"what is this?", 1, "at byte 0 of 13: a message is a map, this is int"),
        (b"\x91" * 100_000, 1, "at byte 0"),
    ],
    ids=["empty", "reserved", "array", "no envelope", "truncated", "cut ZMTP", "wrong header", "text", "deep"],
)
def test_what_is_no_capture_is_one_sentence(tmp_path, capsys, given, code, told):
    path = tmp_path / "capture"
    path.write_bytes(given)
    assert run(command, ["wire", "decode", str(path)]) == code
    err = capsys.readouterr().err
    assert told in err and "Traceback" not in err and len(err.splitlines()) <= 2


def test_packed_numbers_that_are_cut_off_are_found_by_their_byte(tmp_path, capsys):
    plain = msgpack.unpackb(GOLDEN["Checksummed"])
    plain["body"]["checksums"] = bytes(7)
    path = tmp_path / "capture"
    path.write_bytes(CANCEL + (broken := msgpack.packb(plain)))
    assert run(command, ["wire", "decode", str(path)]) == 1
    told = f"at byte {len(CANCEL)} of {len(CANCEL) + len(broken)}: 7 bytes are no checksums of 8 bytes each"
    assert told in capsys.readouterr().err


def test_a_file_that_is_not_there(capsys):
    assert run(command, ["wire", "decode", "nowhere"]) == 2
    assert "cannot read nowhere" in capsys.readouterr().err
