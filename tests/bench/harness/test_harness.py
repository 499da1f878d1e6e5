from __future__ import annotations

import io
import json
import os
import shutil
from functools import partial
from pathlib import Path

import click
import pytest
from rich.console import Console

from distkv.bench.deciding import queue
from distkv.bench.harness.alternate import Ratio, Samples, alternate, paired_ratio, pooled_ratio
from distkv.bench.harness.command import Measured, benchmark, unit_of_name
from distkv.bench.harness.kept import keep, keep_rows
from distkv.bench.harness.machine import machine_facts, versions_of
from distkv.bench.harness.plots import plot
from distkv.bench.harness.plots.units import HIGHER, LOADS, LOWER, better
from distkv.bench.harness.report import Goal, Report, Result, judged, results, show, show_lines, write_json
from distkv.bench.pooling import summary
from distkv.bench.reports.plot import main as draw
from distkv.bench.serving import concurrency, interference
from distkv.cli.exit_codes import run

ROOT = Path(__file__).parents[3]

SAMPLES: Samples = {"decode": {"ours": [90.0, 100.0, 120.0], "theirs": [45.0, 50.0, 60.0]}, "wait": {"ours": [0.5]}}
UNIT_OF = {"decode": "tokens/s", "wait": "s"}.__getitem__
GOALS = (
    Goal(goal="faster", target="> 1", measured="2", met=True),
    Goal(goal="less", target="< 1", measured="0", met=None, why="no such device here"),
)


MEASURED = Measured(SAMPLES, GOALS, {"place": "here"})
REPORT = Report("fake", machine_facts(), versions_of(["click"]), results(SAMPLES, UNIT_OF), GOALS)


def test_variants_take_turns_and_warm_up_first():
    calls: list[str] = []
    told: list[str] = []

    def variant(name: str) -> dict[str, float]:
        calls.append(name)
        return {"case": float(len(calls))}

    samples = alternate({name: lambda name=name: variant(name) for name in "ab"}, 3, report=told.append)
    assert calls == ["b", "a", "a", "b", "b", "a", "a", "b"]
    assert samples == {"case": {"a": [3.0, 6.0, 7.0], "b": [4.0, 5.0, 8.0]}}
    assert told == ["warming up", "round 1 of 3", "round 2 of 3", "round 3 of 3"]


def test_a_ratio_and_its_interval():
    ratio = paired_ratio([2.0, 4.0, 8.0], [1.0, 2.0, 4.0])
    assert (ratio.value, ratio.low, ratio.high) == pytest.approx((2, 2, 2))
    noisy = paired_ratio([1.0, 2.0, 4.0, 2.0], [1.0, 1.0, 1.0, 1.0])
    assert noisy.low < noisy.value < noisy.high
    assert noisy.value == pytest.approx(2.0)
    assert noisy == paired_ratio([1.0, 2.0, 4.0, 2.0], [1.0, 1.0, 1.0, 1.0])
    with pytest.raises(ValueError, match="zip"):
        paired_ratio([1.0], [])


def test_rounds_of_few_values_count_together():
    ours, theirs = [[1.0, 1.0, 9.0], [1.0, 1.0, 2.0]], [[1.0, 2.0, 1.0], [1.0, 3.0, 1.0]]
    assert pooled_ratio(ours, theirs, max) == Ratio(3.0, 2 / 3, 4.5)
    with pytest.raises(ValueError, match="zip"):
        pooled_ratio(ours, theirs[:1], max)


def test_results_are_medians_and_spread():
    assert results(SAMPLES, UNIT_OF)[0] == Result("decode", "ours", median=100, min=90, max=120, unit="tokens/s")


def test_facts_name_the_machine():
    facts = machine_facts()
    assert facts["cpu"] and facts["cores"] >= 1 and facts["memory_gib"] > 0
    assert versions_of(["click", "no-such-thing"])["no-such-thing"] == "not installed"


def test_the_json_is_as_documented(tmp_path):
    write_json(REPORT, tmp_path / "f.json")
    written = json.loads((tmp_path / "f.json").read_text())
    assert list(written) == ["benchmark", "machine", "versions", "results", "goals"]
    assert list(written["results"][0]) == ["case", "variant", "median", "min", "max", "unit"]
    assert list(written["goals"][1]) == ["goal", "target", "measured", "met", "why"]
    assert written["goals"][1]["met"] is None


def test_the_table_has_every_row_and_goal():
    out = io.StringIO()
    show(REPORT, SAMPLES, Console(file=out, width=100))
    lines = [" ".join(line.split()) for line in out.getvalue().splitlines()]
    assert "ours 100 90 120 tokens/s" in lines
    assert "theirs 50 45 60 tokens/s 2.00 (2.00..2.00)" in lines
    assert "goal met: faster: 2 (target: > 1)" in lines
    assert "goal unresolved: less: 0 (target: < 1); no such device here" in lines


def test_a_command_writes_what_is_asked_for(tmp_path, capsys):
    pytest.importorskip("matplotlib", reason="--plot needs the extra 'bench'")
    asked = []

    def measure(say, quick, more, rounds):
        asked.append((quick, more, rounds))
        say("halfway")
        return MEASURED

    options = [click.Option(["--more"], type=int)]
    main = benchmark("fake", measure, "Nothing.", options, unit_of=UNIT_OF, packages=["click"], rounds=(9, 2))
    files = {"--json": tmp_path / "f.json", "--plot": tmp_path / "f.png"}
    assert run(main, ["--quick", "--more", "3", *(str(part) for pair in files.items() for part in pair)]) == 0
    assert asked == [(True, 3, 2)]
    written = json.loads(files["--json"].read_text())
    assert written["benchmark"] == "fake" and written["machine"]["others_cores"] >= 0
    assert written["machine"]["place"] == "here" and "click" in written["versions"]
    assert [row["unit"] for row in written["results"]] == ["tokens/s", "tokens/s", "s"]
    assert files["--plot"].read_bytes().startswith(b"\x89PNG")
    captured = capsys.readouterr()
    assert "distkv bench fake" in captured.out and "halfway" in captured.err


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ("", "--rounds 9"),
        ("--quick --json=f.json --more 3", "--quick --more 3 --rounds 2"),
        ("--rounds 5 --json f.json --more 3 --plot f.png", "--rounds 5 --more 3"),
    ],
)
def test_the_report_has_the_command_that_measures_the_same(given, told, tmp_path, monkeypatch, capsys):
    pytest.importorskip("matplotlib", reason="--plot needs the extra 'bench'")
    monkeypatch.chdir(tmp_path)
    options = [click.Option(["--more"], type=int)]
    shown = []
    main = benchmark(
        "fake",
        lambda say, **given: MEASURED,
        "Nothing.",
        options,
        unit_of=UNIT_OF,
        rounds=(9, 2),
        table=lambda report, samples, console: shown.append(report.machine["command"]),
    )
    assert run(main, given.split()) == 0
    assert shown == [f"distkv bench fake {told}"]


def test_the_file_grows_with_every_case(tmp_path, capsys):
    file, seen = tmp_path / "f.json", []

    def measure(say, quick):
        for case in ("writing", "reading", "nothing"):
            say(case)
            seen.append([row["case"] for row in json.loads(file.read_text())["results"]] if file.exists() else None)
            alternate({"first": lambda case=case: {case: 5.0}}, 2)
        return MEASURED

    assert run(benchmark("fake", measure, "Nothing.", unit_of=lambda _: "s"), ["--json", str(file)]) == 0
    assert seen == [None, ["writing"], ["writing", "reading"]]
    assert [path.name for path in tmp_path.iterdir()] == ["f.json"]
    assert "interrupted" not in json.loads(file.read_text())["machine"]


def test_a_full_disk_ends_no_benchmark_and_takes_nothing_that_was_kept(tmp_path, capsys):
    file = tmp_path / "f.json"

    def measure(say, quick):
        for case in ("writing", "reading"):
            alternate({"first": lambda case=case: {case: 5.0}}, 2)
            say(case)
            (tmp_path / "f.json.part").mkdir(exist_ok=True)  # from now on it cannot be written
        return MEASURED

    main = benchmark("fake", measure, "Nothing.", unit_of=lambda _: "s")
    assert run(main, ["--json", str(file)]) == 1
    assert [row["case"] for row in json.loads(file.read_text())["results"]] == ["writing"]
    captured = capsys.readouterr()
    assert captured.err.count(f"cannot write {file}: Is a directory") == 2 and "distkv bench fake" in captured.out
    assert run(main, ["--json", "/dev/full"]) == 1
    captured = capsys.readouterr()
    assert "cannot write /dev/full: No space left on device" in captured.err and "distkv bench fake" in captured.out


def test_an_interrupted_benchmark_keeps_its_rounds(tmp_path, capsys):
    """The round that was under way does not count, and neither does an earlier benchmark."""
    alternate({"old": lambda: {"nothing": 1.0}}, 1)
    calls = []

    def slow():
        calls.append(1)
        if len(calls) == 4:
            raise KeyboardInterrupt
        return {"reading": float(len(calls))}

    def measure(say, quick):
        alternate({"first": lambda: {"writing": 5.0}}, 2)
        alternate({"a": slow, "b": lambda: {"reading": 7.0}}, 5, warmups=1)
        raise AssertionError

    main = benchmark("fake", measure, "Nothing.", unit_of={"writing": "s", "reading": "GB/s"}.__getitem__)
    assert run(main, ["--quick", "--json", str(tmp_path / "f.json")]) == 130
    kept = json.loads((tmp_path / "f.json").read_text())
    assert kept["machine"]["interrupted"] is True
    assert kept["machine"]["command"] == "distkv bench fake --quick"
    found = {(row["case"], row["variant"]): (row["median"], row["unit"]) for row in kept["results"]}
    assert found == {("writing", "first"): (5.0, "s"), ("reading", "a"): (2.5, "GB/s"), ("reading", "b"): (7.0, "GB/s")}
    assert "reading" in capsys.readouterr().out
    main = benchmark(
        "fake", lambda say, quick: (_ for _ in ()).throw(KeyboardInterrupt), "Nothing.", unit_of=unit_of_name
    )
    assert run(main, ["--json", str(tmp_path / "none.json")]) == 130
    assert not (tmp_path / "none.json").exists(), "nothing was measured"


def test_what_is_measured_without_turns_is_kept_too(tmp_path, capsys):
    pytest.importorskip("matplotlib", reason="--plot needs the extra 'bench'")

    def measure(say, quick):
        keep_rows({("cell", "sort"): Result("cell", "sort: 1/2", 50, 10, 90, "% exact")})
        samples = keep({})
        for variant, values in (("10", [1.0, 2.0]), ("100", [3.0])):
            for value in values:
                samples.setdefault("CPU", {}).setdefault(variant, []).append(value)
        raise KeyboardInterrupt

    files = {"--json": tmp_path / "f.json", "--plot": tmp_path / "f.png"}
    main = benchmark("fake", measure, "Nothing.", unit_of=lambda case: "ms")
    assert run(main, [str(part) for pair in files.items() for part in pair]) == 130
    kept = json.loads(files["--json"].read_text())
    assert [(row["variant"], row["median"], row["unit"]) for row in kept["results"]] == [
        ("10", 1.5, "ms"),
        ("100", 3.0, "ms"),
        ("sort: 1/2", 50, "% exact"),
    ]
    assert files["--plot"].read_bytes().startswith(b"\x89PNG")
    assert "100" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("write", "numbers"),
    [(plot.write_plot, ["2.00", "0.50"]), (partial(plot.write_curves, along="peers"), ["0.50", "2.00"])],
)
def test_a_plot_says_which_way_is_better_what_whiskers_are_and_the_ratios(write, numbers, tmp_path, monkeypatch):
    figures = pytest.importorskip("matplotlib.figure", reason="plots need the extra 'bench'")
    drawn = []
    monkeypatch.setattr(figures.Figure, "savefig", lambda self, path, dpi: drawn.append(self))
    rows = tuple(
        Result(case, variant, median, median / 2, median * 2, unit)
        for case, unit, medians in (("decode", "tokens/s", (100, 50)), ("wait", "s", (2, 4)), ("load", "1/s", (1, 0)))
        for variant, median in zip(("1,000", "2,000"), medians, strict=True)
    )
    write(Report("fake", machine_facts() | {"interrupted": True}, {}, rows), tmp_path / "f.png")
    (figure,) = drawn
    labels = [axes.get_ylabel() for axes in figure.axes]
    assert labels == ["tokens/s (higher is better)", "s (lower is better)", "1/s"]
    texts = [one.get_text() for one in figure.findobj(lambda artist: hasattr(artist, "get_text"))]
    assert sum("whiskers: least and most" in text for text in texts) == 1
    assert any(text.endswith(", interrupted") for text in texts)
    over = [[text.get_text() for text in axes.texts] for axes in figure.axes]
    assert over[:2] == [[number] for number in numbers]


LINES = tuple(
    Result(f"{measure}, {rate}/s", variant, median, median / 2, median * 2, unit)
    for measure, unit in (("goodput", "requests/s"), ("wait, p99", "s"))
    for rate, medians in (("0.5", (1.0, 2.0)), ("4", (3.0,)))
    for variant, median in zip(("off", "on"), medians, strict=False)
)


def test_lines_run_over_the_numbers_that_cases_end_with(tmp_path, monkeypatch):
    figures = pytest.importorskip("matplotlib.figure", reason="plots need the extra 'bench'")
    drawn = []
    monkeypatch.setattr(figures.Figure, "savefig", lambda self, path, dpi: drawn.append(self))
    plot.write_lines(Report("fake", machine_facts(), {}, LINES), tmp_path / "f.png", along="rate")
    (figure,) = drawn
    assert [axes.get_title() for axes in figure.axes] == ["goodput", "wait, p99"]
    assert [axes.get_xlabel() for axes in figure.axes] == ["rate", "rate"]
    assert [one.get_text() for one in figure.axes[0].get_xticklabels()] == ["0.5", "4"]
    (legend,) = figure.legends
    assert [one.get_text() for one in legend.get_texts()] == ["off", "on"]
    off, on = figure.axes[1].containers
    assert list(off.lines[0].get_xdata()) == [0.5, 4.0] and list(off.lines[0].get_ydata()) == [1.0, 3.0]
    assert list(on.lines[0].get_xdata()) == [0.5]


def test_a_table_of_lines_has_a_row_for_each_point_and_a_column_for_each_variant():
    out = io.StringIO()
    show_lines(Report("fake", machine_facts(), {}, LINES, GOALS), {}, Console(file=out, width=100))
    lines = [" ".join(line.split()) for line in out.getvalue().splitlines()]
    assert lines[1:5] == ["goodput, requests/s", "off on", "0.5/s 1 2", "4/s 3"]
    assert "wait, p99, s" in lines and "goal met: faster: 2 (target: > 1)" in lines


@pytest.mark.parametrize(
    ("low", "high", "met", "why"),
    [
        (1.1, 1.2, True, ""),
        (0.8, 0.9, False, ""),
        (0.9, 1.1, None, "the 95 % interval includes the target"),
        (1.5, 1.5, None, "one round has no interval"),
    ],
)
def test_a_goal_is_judged_by_the_whole_interval(low, high, met, why):
    goal = judged("more", Ratio((low + high) / 2, low, high), least=1.0)
    assert (goal.met, goal.why, goal.target) == (met, why, "at least 1")
    assert judged("more", None, least=1.0).met is None
    assert judged("a difference", Ratio(-0.1, -0.7, 0.5), most=2.0).met
    less = judged("less", Ratio(low, low, high), most=1.0)
    assert less.met == (None if met is None else not met) and less.target == "at most 1"


def test_every_unit_that_was_ever_written_has_a_direction():
    written = [json.loads(file.read_text()) for file in (ROOT / "docs" / "benchmarks").glob("*.json")]
    # A GPU check holds the reports of its stages, some of which are lists of cases.
    staged = [
        stage["report"] for one in written for stage in one.get("stages", ()) if isinstance(stage["report"], dict)
    ]
    reports = [*(one for one in written if "stages" not in one), *staged]
    found = {row["unit"] for report in reports for row in report["results"]}
    found |= {unit for bench in (summary, concurrency, interference, queue) for unit in bench.UNITS.values()}
    assert found == {unit for unit in found if better(unit)} | (found & LOADS)
    assert not LOWER & HIGHER and not LOADS & (LOWER | HIGHER)


def test_a_report_is_drawn_again_as_its_benchmark_draws_it(tmp_path, capsys):
    pytest.importorskip("matplotlib", reason="plots need the extra 'bench'")
    for name in ("smoke", "gmanager", "recall"):
        file = max((ROOT / "docs" / "benchmarks").glob(f"{name}-*.json"))
        copied = tmp_path / file.name
        shutil.copy(file, copied)
        assert run(draw, [str(copied)]) == 0
        assert capsys.readouterr().out.strip() == str(copied.with_suffix(".png"))
        assert copied.with_suffix(".png").read_bytes().startswith(b"\x89PNG")
    (tmp_path / "other.json").write_text('{"no": "report"}')
    write_json(REPORT, tmp_path / "fake.json")
    for name, told in (("other", "was not written by --json"), ("fake", "benchmark 'fake', which there is not")):
        assert run(draw, [str(tmp_path / f"{name}.json")]) == 2
        assert told in capsys.readouterr().err


@pytest.mark.parametrize(
    ("option", "path", "told"),
    [
        ("--plot", "f.png", "pip install '.[bench]'"),
        ("--plot", "f.foo", "expected a name that ends with .png"),
        ("--json", "nowhere/f.json", "there is no directory"),
        ("--json", ".", "is a directory, expected a file"),
        ("--json", "kept/f.json", "cannot be written: permission denied"),
    ],
)
def test_what_would_fail_in_the_end_fails_at_once(option, path, told, tmp_path, capsys, monkeypatch):
    (tmp_path / "kept").mkdir()
    monkeypatch.setattr(os, "access", lambda path, mode: "kept" not in Path(path).parts)  # as for who is not root
    if path == "f.png":
        monkeypatch.setattr(plot, "find_spec", lambda name: None)
    main = benchmark("fake", lambda say, quick: pytest.fail("it was measured"), "Nothing.", unit_of=unit_of_name)
    assert run(main, [option, str(tmp_path / path)]) == 2
    assert told in capsys.readouterr().err
    assert not (tmp_path / path).is_file()
