"""Who may open a link, and what strangers get."""

from __future__ import annotations

import contextlib
import os
import resource
import socket
import struct
from collections.abc import Iterator

import msgspec
import pytest
from structlog.testing import capture_logs

from distkv.errors import ConfigError, HandshakeRefused, LinkClosed, LinkTimeout, MalformedMessage, WireError
from distkv.wire.codec import encode_header
from distkv.wire.links import PoolMemory, TensorLink, connect, hello_to, listen
from distkv.wire.links.streams.frames import MAGIC
from distkv.wire.links.transports.socket_listener import MAX_PENDING, SocketListener
from distkv.wire.messages.common import PROTOCOL_VERSION, DataEndpoint, TransportMetadata
from distkv.wire.messages.data import Attend, Hello, Welcome
from tests.wire.links.peers import (
    DEADLINE_S,
    OWN,
    PEER,
    Pair,
    accepting,
    connect_by,
    in_thread,
    listen_on,
    pool_for,
    random_pool,
)

HELLO = hello_to(OWN, PEER.instance_id, PEER.incarnation)
WRONG = {
    "protocol": msgspec.structs.replace(HELLO, protocol=PROTOCOL_VERSION + 1),
    "compat": msgspec.structs.replace(HELLO, compat="other"),
    "instance_id": msgspec.structs.replace(HELLO, expects_id="c"),
    "incarnation": msgspec.structs.replace(HELLO, expects_incarnation=8),
}


def frame(header: bytes, body_bytes: int = 0, magic: int = MAGIC, header_bytes: int | None = None) -> bytes:
    return struct.pack("<IIQ", magic, len(header) if header_bytes is None else header_bytes, body_bytes) + header


GARBAGE = {
    "noise": b"\x00\xff" * 500,
    "http": b"GET / HTTP/1.1\r\nHost: distkv\r\n\r\n",
    "huge header": frame(b"", header_bytes=2**32 - 1),
    "huge body": frame(encode_header(HELLO), body_bytes=2**63),
    "not msgpack": frame(b"\xc1" * 40),
    "other message": frame(encode_header(Attend(step_id=1, layer=1))),
    "truncated": frame(encode_header(HELLO))[:-3],
    "unknown type": frame(b"\x81\xa4type\xa4Nope"),
}


@pytest.mark.parametrize("field", WRONG)
def test_a_wrong_hello_is_refused_and_both_ends_know_why(transport: str, field: str) -> None:
    links: list[TensorLink] = []
    with contextlib.closing(pool_for(transport)) as pool:
        listener = listen_on(transport, pool)
        with accepting(listener, links):
            with pytest.raises(HandshakeRefused, match=field) as refused:
                connect_by(transport, listener.endpoint, WRONG[field])
            assert refused.value.field == field
            assert PEER.compat not in str(refused.value), "a stranger is not told how to pass"
            connect_by(transport, listener.endpoint).abort()
        assert listener.refused == 1
        assert listener.malformed == 0


@pytest.mark.parametrize("carrier", ["tcp", "unix"])
def test_the_own_log_says_what_a_stranger_is_not_told(carrier: str) -> None:
    with random_pool() as pool, capture_logs() as logs:
        listener = listen_on(carrier, pool)
        with accepting(listener, []), pytest.raises(HandshakeRefused, match="compat should be 'that of the instance'"):
            connect_by(carrier, listener.endpoint, WRONG["compat"])
    (problem,) = [log["problem"] for log in logs if log["event"] == "a tensor link was refused"]
    assert f"compat should be '{PEER.compat}', the peer has 'other'" in problem


@pytest.mark.parametrize("field", ["slot_bytes", "num_slots"])
def test_a_pool_of_another_shape_is_refused(transport: str, field: str) -> None:
    with contextlib.closing(pool_for(transport)) as pool:
        listener = listen_on(transport, pool)
        with accepting(listener, []):
            endpoint = msgspec.structs.replace(listener.endpoint, **{field: 1})
            with pytest.raises(HandshakeRefused, match=field):
                connect_by(transport, endpoint)


def offering(endpoint: DataEndpoint, **changed: TransportMetadata) -> DataEndpoint:
    return msgspec.structs.replace(endpoint, transports=endpoint.transports | changed)


@pytest.mark.parametrize("metadata", [{}, {"pid": "one", "fd": 1}, {"pid": -1, "fd": -1}, {"pid": 1, "fd": 2**63}])
def test_metadata_that_makes_no_sense_is_refused(metadata: TransportMetadata) -> None:
    links: list[TensorLink] = []
    with random_pool() as pool:
        listener = listen_on("tcp", pool)
        with accepting(listener, links), pytest.raises((MalformedMessage, LinkClosed), match=r"shm|cannot be mapped"):
            connect_by("shm", offering(listener.endpoint, shm=metadata))


def test_a_transport_that_this_version_does_not_know_is_no_obstacle() -> None:
    links: list[TensorLink] = []
    with random_pool() as pool:
        listener = listen_on("tcp", pool)
        with accepting(listener, links):
            link = connect_by("auto", offering(listener.endpoint, rdma={"key": 7}))
            assert link.transport == "shm"
            link.abort()


def test_a_worker_that_offers_nothing_but_its_address_is_reached_over_tcp() -> None:
    links: list[TensorLink] = []
    with random_pool() as pool:
        listener = listen_on("tcp", pool)
        with accepting(listener, links):
            bare = msgspec.structs.replace(listener.endpoint, transports={})
            link = connect_by("auto", bare)
            assert link.transport == "tcp"
            link.abort()
            with pytest.raises(LinkClosed, match="memory of a GPU"):
                connect_by("shm", bare)


def test_a_pool_that_is_another_one_is_read_over_a_socket() -> None:
    links: list[TensorLink] = []
    with random_pool() as pool, random_pool() as other:
        listener = listen_on("tcp", pool)
        with accepting(listener, links):
            endpoint = offering(listener.endpoint, shm={"pid": os.getpid(), "fd": other.fd})
            link = connect_by("auto", endpoint)
            assert link.transport == "unix"
            link.abort()
            with pytest.raises(LinkClosed, match="not the memory"):
                connect_by("shm", endpoint)
            elsewhere = msgspec.structs.replace(listener.endpoint, host_key="elsewhere")
            link = connect_by("auto", elsewhere)
            assert link.transport == "tcp"
            link.abort()
            with pytest.raises(LinkClosed, match="another host"):
                connect_by("shm", elsewhere)


def test_a_local_socket_that_leads_nowhere_is_no_obstacle() -> None:
    with random_pool() as pool:
        listener = listen_on("tcp", pool)
        with accepting(listener, []):
            link = connect_by("auto", offering(listener.endpoint, unix={"name": "distkv-link-nobody"}))
            assert link.transport == "shm"
            link.abort()


def endpoint_of(pool: PoolMemory, server: socket.socket) -> DataEndpoint:
    return DataEndpoint(
        address=f"127.0.0.1:{server.getsockname()[1]}", slot_bytes=pool.slot_bytes, num_slots=pool.num_slots
    )


@contextlib.contextmanager
def no_descriptor_left() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest_free = os.dup(0)
    os.close(lowest_free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest_free, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@contextlib.contextmanager
def stranger(listener: SocketListener, sent: bytes) -> Iterator[socket.socket]:
    host, port = listener.address.rsplit(":", 1)
    with socket.create_connection((host, int(port)), timeout=DEADLINE_S) as sock:
        sock.sendall(sent)
        yield sock


def dropped(sock: socket.socket) -> bool:
    with contextlib.suppress(ConnectionError):
        while sock.recv(4096):
            pass
    return True


@pytest.mark.parametrize("carrier", ["auto", "shm", "unix", "tcp"])
def test_without_a_descriptor_there_is_no_link_for_now(carrier: str) -> None:
    """Else the thread of an attempt ended, after which nobody tried again, or the worker did."""
    with random_pool() as pool:
        listener = listen_on("tcp", pool)
        with accepting(listener, []):
            endpoint = listener.endpoint
            with no_descriptor_left(), pytest.raises(LinkClosed):
                connect_by(carrier, endpoint)
            connect_by(carrier, endpoint).abort()


@pytest.mark.parametrize("kind", GARBAGE)
def test_garbage_is_dropped_and_counted(kind: str) -> None:
    with random_pool() as pool, contextlib.closing(SocketListener("127.0.0.1:0", PEER, pool)) as listener:
        links: list[TensorLink] = []
        with accepting(listener, links):
            with stranger(listener, GARBAGE[kind]) as sock:
                if kind == "truncated":
                    sock.shutdown(socket.SHUT_WR)
                assert dropped(sock)
            connect_by("tcp", listener.endpoint).abort()
        assert listener.malformed == 1


def test_slow_and_silent_strangers_delay_nobody() -> None:
    with random_pool() as pool:
        listener = SocketListener("127.0.0.1:0", PEER, pool, handshake_timeout_s=1.5)
        with accepting(listener, []), stranger(listener, b"") as silent, stranger(listener, b"D1K") as slow:
            connect_by("tcp", listener.endpoint).abort()
            assert dropped(silent)
            assert dropped(slow)
        assert listener.malformed == 2


def test_many_strangers_are_bounded() -> None:
    with random_pool() as pool:
        listener = SocketListener("127.0.0.1:0", PEER, pool)
        with accepting(listener, []), contextlib.ExitStack() as stack:
            for _ in range(MAX_PENDING + 10):
                stack.enter_context(stranger(listener, b"D"))
            connect_by("tcp", listener.endpoint).abort()
        assert listener.malformed >= 10


def test_a_hello_in_pieces_is_understood() -> None:
    with random_pool() as pool:
        listener = SocketListener("127.0.0.1:0", PEER, pool)
        links: list[TensorLink] = []
        with accepting(listener, links), stranger(listener, b"") as sock:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            for byte in frame(encode_header(HELLO)):
                sock.sendall(bytes([byte]))
            answer = sock.recv(4096)[16:]
            assert msgspec.msgpack.decode(answer)["type"] == "Welcome"


@pytest.mark.parametrize("transport", ["tcp"])
@pytest.mark.parametrize("kind", ["noise", "huge header", "huge body", "not msgpack"])
def test_malformed_frames_on_an_open_link(transport: str, kind: str, pair: Pair) -> None:
    raw = pair.asking._frames._stream._sock  # type: ignore[attr-defined]
    raw.sendall(GARBAGE[kind])
    with pytest.raises(WireError, match=r"malformed|over the limit"):
        pair.answering.recv(DEADLINE_S)
    with pytest.raises(LinkClosed):
        pair.answering.recv(DEADLINE_S)


@pytest.mark.parametrize("answer", [Attend(step_id=0, layer=0), None], ids=["other message", "silence"])
def test_a_server_that_is_no_worker(answer: Attend | None) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, random_pool() as pool:
        endpoint = endpoint_of(pool, server)

        def serve() -> None:
            sock, _address = server.accept()
            with sock:
                if answer is not None:
                    sock.sendall(frame(encode_header(answer)))
                assert dropped(sock)

        expected = LinkTimeout if answer is None else MalformedMessage
        with in_thread(serve), pytest.raises(expected):
            connect(endpoint, HELLO, 0.2)


@pytest.mark.parametrize("field", ["instance_id", "incarnation"])
def test_an_impostor_is_noticed(field: str) -> None:
    welcome = Welcome(instance_id="b", incarnation=7, slot_bytes=4096, num_slots=64)
    wrong = msgspec.structs.replace(welcome, **{field: "c" if field == "instance_id" else 8})
    with socket.create_server(("127.0.0.1", 0)) as server, random_pool() as pool:

        def serve() -> None:
            sock, _address = server.accept()
            with sock:
                sock.sendall(frame(encode_header(wrong)))
                assert dropped(sock)

        with in_thread(serve), pytest.raises(HandshakeRefused, match=field):
            connect(endpoint_of(pool, server), HELLO, DEADLINE_S)


@pytest.mark.parametrize("address", ["127.0.0.1", "127.0.0.1:x", "127.0.0.1:70000", "::1:5", ":5"])
def test_addresses_that_are_none(address: str) -> None:
    with random_pool() as pool, pytest.raises(ConfigError, match="address"):
        listen(address, PEER, pool)


def test_listening_beyond_loopback_needs_insecure() -> None:
    with random_pool() as pool:
        with pytest.raises(ConfigError, match="--insecure"):
            listen("0.0.0.0:0", PEER, pool)
        listen("0.0.0.0:0", PEER, pool, insecure=True).close()


def test_a_taken_port_is_named() -> None:
    with random_pool() as pool:
        listener = listen("127.0.0.1:0", PEER, pool)
        with pytest.raises(ConfigError, match="in use"):
            listen(listener.address, PEER, pool)
        listener.close()


def test_accept_times_out_and_ends_with_its_listener(transport: str) -> None:
    with contextlib.closing(pool_for(transport)) as pool:
        listener = listen_on(transport, pool)
        assert listener.accept(0.01) is None
        assert listener.accept(0) is None

        def wait() -> None:
            with pytest.raises(LinkClosed, match="listener is closed"):
                while True:
                    listener.accept(DEADLINE_S)

        with in_thread(wait):
            listener.close()
        listener.close()
        with pytest.raises(LinkClosed):
            listener.accept(0)
        with pytest.raises(LinkClosed):
            connect_by(transport, listener.endpoint)


def test_hello_is_what_the_protocol_says() -> None:
    assert (
        Hello(
            protocol=PROTOCOL_VERSION,
            instance_id="a",
            incarnation=3,
            compat="same",
            expects_id="b",
            expects_incarnation=7,
        )
        == HELLO
    )
