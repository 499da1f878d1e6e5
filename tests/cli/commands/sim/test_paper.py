"""`distkv sim paper`: what it prints and writes."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from distkv.cli.exit_codes import run
from distkv.cli.main import command
from distkv.sim.papers import make
from distkv.sim.papers.figure import Effort, Figure


def test_it_prints_theirs_beside_ours_and_writes_what_it_made(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "papers.md"
    page.write_text("# Papers\n<!-- figure 000-11 -->\n<!-- end of figure -->\n")
    assert run(command, ["sim", "paper", "000-11", "--quick", "--json", str(tmp_path), "--docs", str(page)]) == 0
    out = capsys.readouterr().out
    assert "5 to 10" in out
    assert out.endswith("\n000-11: a run with --quick only shows that it works; its numbers mean nothing\n")
    written = msgspec.json.decode((tmp_path / "000-11.json").read_bytes(), type=Figure)
    assert written == make("000-11", Effort.QUICK, lambda what, share: None)
    assert "| 5 to 10 |" in page.read_text() and "with `--quick`" in page.read_text()


def test_it_draws_what_was_written_before(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    assert run(command, ["sim-paper", "000-12", "--quick", "--json", str(tmp_path)]) == 0
    assert run(command, ["sim", "paper", "000-12", "--from", str(tmp_path), "--plot", str(tmp_path)]) == 0
    assert (tmp_path / "000-12.png").read_bytes().startswith(b"\x89PNG")


def test_numbers_of_a_full_run_are_not_called_into_question(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    full = msgspec.structs.replace(make("000-12", Effort.QUICK, lambda what, share: None), effort=Effort.FULL)
    (tmp_path / "000-12.json").write_bytes(msgspec.json.encode(full))
    assert run(command, ["sim", "paper", "000-12", "--from", str(tmp_path)]) == 0
    assert "--quick" not in capsys.readouterr().out


def test_it_plays_the_traces_that_it_is_given(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = tmp_path / "turns.csv"
    rows = "".join(f"{0.5 * place},{500 + place},20\n" for place in range(40))
    trace.write_text(f"arrival_s,prompt_tokens,output_tokens\n{rows}")
    arguments = ["sim", "paper", "beyond-goodput", "--quick", "--trace", str(trace), "--json", str(tmp_path)]
    assert run(command, arguments) == 0
    assert "turns, 2 instances" in capsys.readouterr().out
    written = msgspec.json.decode((tmp_path / "beyond-goodput.json").read_bytes(), type=Figure)
    assert {panel.title for panel in written.panels} == {"turns, 2 instances"}


def test_both_words_are_one_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(command, ["sim", "trace", "infinite-3", "--requests", "2"]) == 0
    assert capsys.readouterr().out.startswith("arrival_s,")


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["000-13"], "there is no figure '000-13'"),
        (["000-11", "--json", "/nowhere"], "/nowhere"),
        (["000-11", "--from", "{here}"], "cannot read"),
        (["000-12", "--from", "{here}"], "is no figure"),
        (["beyond-goodput"], "give one: --trace FILE"),
        (["beyond-goodput", "--trace", "/nowhere"], "/nowhere cannot be read"),
        (["000-11", "--quick", "--docs", "{here}/page.md"], "no place for figure 000-11"),
    ],
)
def test_what_cannot_be_made_is_said(
    arguments: list[str], reason: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "page.md").write_text("# Papers\n")
    (tmp_path / "000-12.json").write_text("{}")
    assert run(command, ["sim", "paper", *(one.format(here=tmp_path) for one in arguments)]) == 2
    assert reason in capsys.readouterr().err
