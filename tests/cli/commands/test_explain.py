from __future__ import annotations

import json
from typing import Any

import click
import pytest

from distkv.cli.commands.explain import _beginning
from distkv.cli.exit_codes import run
from distkv.cli.main import command
from tests.cli.statuses import request, status
from tests.client.fakes import count_up


class Listing:
    """A client of a cluster with these live requests."""

    def __init__(self, *names: str) -> None:
        self.names = names

    def statuses(self) -> Any:
        return (status("i0"), status("i1", requests=tuple(request(name, "i1") for name in self.names)))


def test_sentences_json_and_an_unknown_request(background, capsys):
    cluster = background.start(count_up)
    assert run(command, ["explain", "i0-r", "--address", cluster.address]) == 0
    assert "it borrowed 1 rBlock from other" in capsys.readouterr().out
    assert run(command, ["explain", "i0-r", "--json", "--address", cluster.address]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert (
        shown["explained"]["state"] == "running" and shown["dispatched"]["instance_id"] == "i0" and shown["sentences"]
    )
    assert run(command, ["explain", "nothing", "--address", cluster.address]) == 1
    err = capsys.readouterr().err
    assert "no request 'nothing' is known" in err and "hint: give the whole id" in err


@pytest.mark.parametrize("prefix", ["i1", "cmpl-i1", "chatcmpl-i1-"])
def test_the_beginning_of_an_id_is_enough(background, capsys, prefix):
    cluster = background.start(count_up, count_up)
    assert run(command, ["explain", prefix, "--address", cluster.address]) == 0
    assert "Request i1-r is served by i1" in capsys.readouterr().out


def test_a_beginning_that_several_requests_have_names_them(background, capsys):
    cluster = background.start(count_up, count_up)
    assert run(command, ["explain", "i", "--address", cluster.address]) == 1
    assert capsys.readouterr().err == "error: the ids of 2 requests begin with i: i0-r, i1-r\n"
    many: Any = Listing(*(f"job-{number}" for number in range(9)))
    with pytest.raises(click.ClickException, match="9 requests begin with job: job-0, job-1, job-2, job-3 and 5 more"):
        _beginning(many, "cmpl-job")


def test_outputs_of_one_http_request_are_one_request():
    listing: Any = Listing(
        "5f0c-1b2c3d4e-0", "5f0c-1b2c3d4e-1", "5f0c-1b2c3d4e-1-again", "77-aaaaaaaa~0123456789abcdef"
    )
    assert _beginning(listing, "cmpl-5f") == "5f0c-1b2c3d4e"
    assert _beginning(listing, "5f0c-1b2c3d4e-0") == "5f0c-1b2c3d4e-0"
    assert _beginning(listing, "7") == "77-aaaaaaaa~0123456789abcdef"
    assert _beginning(listing, "8") is None and _beginning(listing, "cmpl-") is None
