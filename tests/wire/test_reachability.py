"""What is wrong at an address that does not answer."""

from __future__ import annotations

import socket

import pytest
import zmq

from distkv.wire import reachability
from distkv.wire.reachability import is_elsewhere, problem_at


def test_a_port_that_nobody_listens_at() -> None:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        assert problem_at(f"tcp://127.0.0.1:{bound.getsockname()[1]}") == "nothing listens there"


@pytest.mark.parametrize("host", ["no..name", "x" * 64 + ".example"])
def test_a_name_that_is_none(host: str) -> None:
    assert problem_at(f"tcp://{host}:7070") == f"the name {host} is not known here"


@pytest.mark.parametrize(
    ("error", "said"),
    [(TimeoutError(), "nothing answers there"), (OSError(113, "No route to host"), "No route to host")],
    ids=["silent", "no route"],
)
def test_a_host_that_cannot_be_reached(error: OSError, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def unreachable(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(socket, "create_connection", unreachable)
    assert problem_at("tcp://127.0.0.1:7070") == said


def test_a_look_up_that_takes_long_holds_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reachability, "WAIT_S", 0.01)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        assert problem_at(f"tcp://127.0.0.1:{silent.getsockname()[1]}") == "nothing answers there"


def test_nothing_is_said_of_who_answers_and_of_what_is_no_address() -> None:
    with zmq.Context() as context, context.socket(zmq.ROUTER) as router:
        port = router.bind_to_random_port("tcp://127.0.0.1")
        assert problem_at(f"tcp://127.0.0.1:{port}") == ""
    assert problem_at("nowhere") == problem_at("tcp://a:1,tcp://b:2") == ""


class Datagrams:
    """A socket on a machine that has 10.0.0.1, and 10.0.0.7 besides it, and no way beyond its neighbours."""

    def __init__(self, *_: object) -> None:
        pass

    def __enter__(self) -> Datagrams:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def bind(self, address: tuple[str, int]) -> None:
        if address[0] not in ("10.0.0.1", "10.0.0.7"):
            raise OSError(99, "Cannot assign requested address")

    def connect(self, address: tuple[str, int]) -> None:
        if not address[0].startswith("10.0.0."):
            raise OSError(101, "Network is unreachable")


@pytest.mark.parametrize(
    ("address", "elsewhere"),
    [
        ("tcp://10.0.0.1:7070", False),
        ("tcp://10.0.0.7:7070", False),
        ("tcp://10.0.0.2:7070", True),
        ("tcp://10.9.9.9:7070", False),
        ("tcp://no..name:7070", False),
        ("nowhere", False),
    ],
    ids=["own", "another one of its own", "another machine", "no route", "no name", "no address"],
)
def test_an_address_of_another_machine(address: str, elsewhere: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "socket", Datagrams)
    assert is_elsewhere(address) is elsewhere


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "127.0.0.2", "127.1", "[::1]", "[0:0::1]", "localhost", "0.0.0.0", "[::]"]
)
def test_a_machine_is_not_elsewhere_however_it_is_written(host: str) -> None:
    assert not is_elsewhere(f"tcp://{host}:7070")


@pytest.mark.parametrize(
    ("found", "elsewhere"),
    [(["2001:db8::2", "10.0.0.2"], True), (["10.0.0.2", "10.0.0.1"], False), (["2001:db8::2"], False)],
    ids=["one without a route", "one of its own", "none with a route"],
)
def test_a_name_with_several_addresses(found: list[str], elsewhere: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A name with an IPv6 address, on a machine that reaches none, was taken for one that cannot be reached."""
    monkeypatch.setattr(reachability, "look_up", lambda _host, _timeout_s: found)
    monkeypatch.setattr(socket, "socket", Datagrams)
    assert is_elsewhere("tcp://gmanager.example:7070") is elsewhere
