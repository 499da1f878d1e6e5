"""Transports that need a package, and a pool that is registered with them."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import ModuleType

import pytest
import structlog

from distkv.errors import ConfigError, LinkClosed, MalformedMessage
from distkv.wire.links import Pool, PoolMemory, TensorLink, attach, connect, hello_to, listen, register
from distkv.wire.links.registration import MAX_ATTACH_BYTES, Registration, ask_to_attach
from distkv.wire.links.transports import registry
from distkv.wire.links.transports.offer import TransportUnusable, offered
from distkv.wire.links.transports.optional import Optional
from distkv.wire.messages.common import DataEndpoint, Value
from distkv.wire.messages.data import Attach, Attend, Hello
from tests.wire.links.peers import DEADLINE_S, OWN, PEER, in_thread, open_pair, random_pool

MODULE = "tests.wire.links.a_transport_with_packages"


class Offer(Value, frozen=True):
    port: int


class Carrier:
    """A Registration that notes what is asked of it."""

    offer = Offer(port=7)

    def __init__(self, pool: Pool) -> None:
        if not pool.num_slots % 2:
            raise TransportUnusable("it carries odd pools only")
        self.attached: list[str] = []

    def connect(self, endpoint: DataEndpoint, hello: Hello, timeout_s: float) -> TensorLink:
        if offered(endpoint, "carrier", Offer) is None:
            raise TransportUnusable("the peer does not offer it")
        link = registry.CONNECT["tcp"](endpoint, hello, timeout_s)
        self.told = bytes(ask_to_attach(link, "carrier", b"mine", timeout_s))
        return link

    def attach(self, link: TensorLink, body: memoryview) -> bytes:
        if body == b"nonsense":
            raise MalformedMessage("nothing that it knows")
        self.attached.append(link.peer)
        return b"yours, " + bytes(body)

    def detach(self, link: TensorLink) -> None:
        self.attached.remove(link.peer)

    def close(self) -> None:
        pass


@pytest.fixture
def carrier(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    module = ModuleType(MODULE)
    module.register = Carrier  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, MODULE, module)
    monkeypatch.setattr(registry, "OPTIONAL", {"carrier": Optional("carrier", MODULE, "fast")})
    monkeypatch.setattr(registry, "ORDER", ("inproc", "shm", "carrier", "unix", "tcp"))
    yield


@pytest.fixture
def pool() -> Iterator[PoolMemory]:
    with random_pool(num_slots=3) as pool:
        yield pool


def test_a_missing_package_is_named_with_what_installs_it(monkeypatch: pytest.MonkeyPatch, pool: PoolMemory) -> None:
    monkeypatch.setitem(registry.OPTIONAL, "carrier", Optional("carrier", "no_such_package", "fast"))
    with pytest.raises(ConfigError, match=r"no_such_package.*pip install 'llm-distkv\[fast\]'"):
        register(pool, "carrier")  # type: ignore[arg-type]
    assert register(pool) == {}


@pytest.mark.usefixtures("carrier")
def test_what_does_not_suit_a_transport_is_an_error_where_it_is_insisted_on() -> None:
    with random_pool(num_slots=4) as pool, pytest.raises(ConfigError, match="tensor_transport: it carries odd pools"):
        register(pool, "carrier")  # type: ignore[arg-type]


@pytest.mark.usefixtures("carrier")
def test_auto_registers_only_pools_that_cannot_be_mapped(pool: PoolMemory, monkeypatch: pytest.MonkeyPatch) -> None:
    assert register(pool) == {}
    monkeypatch.setattr(PoolMemory, "mappable", None)
    assert list(register(pool)) == ["carrier"]
    monkeypatch.setitem(registry.OPTIONAL, "other", Optional("other", "no_such_package", "fast"))
    with structlog.testing.capture_logs() as logs:
        assert list(register(pool)) == ["carrier"]
    assert [(line["event"], line["transport"]) for line in logs] == [("a transport is not used", "other")]


@pytest.mark.usefixtures("carrier")
@pytest.mark.parametrize("transport", ["carrier", "auto"])
def test_a_link_by_it(pool: PoolMemory, transport: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PoolMemory, "mappable", None)
    own = register(pool, transport)  # type: ignore[arg-type]
    theirs = register(pool, transport)  # type: ignore[arg-type]
    listener = listen("127.0.0.1:0", PEER, pool, registered=theirs)
    hello = hello_to(OWN, PEER.instance_id, PEER.incarnation)

    def serve() -> None:
        link = listener.accept(DEADLINE_S)
        assert link is not None
        request, body = link.recv(DEADLINE_S)
        assert isinstance(request, Attach)
        registration = attach(link, request, body, theirs)
        assert registration.attached == ["a"]  # type: ignore[attr-defined]
        registration.detach(link)
        link.close()

    with in_thread(serve), structlog.testing.capture_logs() as logs:
        link = connect(listener.endpoint, hello, DEADLINE_S, transport, own)  # type: ignore[arg-type]
    assert own["carrier"].told == b"yours, mine"  # type: ignore[attr-defined]
    link.abort()
    listener.close()
    if transport == "auto":
        chosen = next(line for line in logs if line["event"] == "a transport was chosen")
        assert chosen["transport"] == "carrier" and list(chosen["not_used"]) == ["inproc", "shm"]


@pytest.mark.usefixtures("carrier")
def test_it_is_not_used_by_who_has_not_registered_or_is_not_offered_it(pool: PoolMemory) -> None:
    listener = listen("127.0.0.1:0", PEER, pool)
    hello = hello_to(OWN, PEER.instance_id, PEER.incarnation)
    with pytest.raises(LinkClosed, match="the own pool is not registered with carrier"):
        connect(listener.endpoint, hello, 1.0, "carrier")  # type: ignore[arg-type]
    with pytest.raises(LinkClosed, match="the peer does not offer it"):
        connect(listener.endpoint, hello, 1.0, "carrier", register(pool, "carrier"))  # type: ignore[arg-type]
    listener.close()


@pytest.mark.parametrize(
    ("name", "body", "why"),
    [
        ("other", b"", "one that the endpoint offers"),
        ("carrier", b"nonsense", "one of transport carrier"),
        ("carrier", bytes(MAX_ATTACH_BYTES + 1), "at most 65536 bytes"),
    ],
)
def test_nonsense_is_denied(pool: PoolMemory, name: str, body: bytes, why: str) -> None:
    registered: dict[str, Registration] = {"carrier": Carrier(pool)}
    with open_pair("tcp", pool) as pair:
        pair.asking.send(Attach(transport=name), body)
        request, got = pair.answering.recv(DEADLINE_S)
        assert isinstance(request, Attach)
        with pytest.raises(MalformedMessage, match=why):
            attach(pair.answering, request, got, registered)
        with pytest.raises(LinkClosed, match=why):
            pair.asking.recv(DEADLINE_S)


def test_another_answer_to_attach_is_malformed(pool: PoolMemory) -> None:
    with open_pair("tcp", pool) as pair:
        pair.answering.send(Attend(step_id=1, layer=1))
        with pytest.raises(MalformedMessage, match="the answer to Attach is Attend"):
            ask_to_attach(pair.asking, "carrier", b"", DEADLINE_S)
