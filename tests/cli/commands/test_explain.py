from __future__ import annotations

import json

from distkv.cli.exit_codes import run
from distkv.cli.main import command
from tests.client.fakes import count_up


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
    assert "no request 'nothing' is known" in capsys.readouterr().err
