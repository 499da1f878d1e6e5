from __future__ import annotations

import json

from distkv.cli.exit_codes import run
from distkv.cli.main import command
from tests.client.fakes import count_up


def test_status_json_and_table(background, capsys):
    cluster = background.start(count_up)
    assert run(command, ["status", "--json", "--address", cluster.address]) == 0
    assert [one["instance_id"] for one in json.loads(capsys.readouterr().out)["instances"]] == ["i0"]
    assert run(command, ["status", "--address", cluster.address]) == 0
    out = capsys.readouterr().out
    assert "borrowed" in out and "i0[0..32)" in out
