from __future__ import annotations

import io

import msgspec
import pytest
from rich.console import Console

from distkv.cli.live.dashboard import ANY_WIDTH, View, pool_bar, render
from distkv.cli.live.samples import Sample
from distkv.wire.messages.to_client import ClusterState, DebtEdge, DgfmRunStatus, PlanStatus, SlotCounts
from tests.cli.statuses import request, status


def lines(view: View, *, width: int = 80, height: int | None = None, ascii_only: bool = False) -> list[str]:
    """The view as a terminal of that width shows it."""
    console = Console(file=io.StringIO(), width=width, height=height or 100, markup=False, highlight=False)
    with console.capture() as captured:
        console.print(render(view, width=width, height=height, ascii_only=ascii_only))
    return [line.rstrip() for line in captured.get().splitlines()]


def busy(instances: int = 4, requests: int = 3, name: str = "i") -> View:
    """Every instance lends to the one before it and runs some requests."""
    names = [f"{name}{index}" for index in range(instances)]
    now = tuple(
        status(
            one,
            blocks=(8, 16, 6, 2),
            prompt=3000,
            generated=500,
            running=requests,
            waiting=1,
            borrowed=6,
            requests=tuple(
                request(f"req-{one}-{k:032d}", one, (names[(index + 1) % instances], 512), (one, 1000))
                for k in range(requests)
            ),
        )
        for index, one in enumerate(names)
    )
    before = tuple(status(one, prompt=1000, generated=480) for one in names)
    return View("distkv at tcp://127.0.0.1:7070", Sample(12.0, now), Sample(10.0, before))


def test_it_says_how_every_instance_is_who_lends_and_what_runs():
    shown = lines(busy(2, 1))
    assert shown[0] == "distkv at tcp://127.0.0.1:7070"
    assert shown[1] == "tokens/s: prompt 2,000, generated 20.0   requests: 2 running, 2 waiting"
    assert " ".join(shown[3].split()) == "id state pool in use ·free █local ▓lent borrowed run wait"
    assert shown[4].split() == ["i0", "ready", "█████████▓▓▓▒▒····", "75%", "8", "16", "6", "6", "1", "1"]
    assert shown[6:9] == ["", "loans, from creditor → to debtor", "i0 → i1 32 rBlocks 512 tokens 1 request"]
    assert shown[11].startswith("request") and shown[12].endswith("i0  1,512    34% i1 512, i0 1,000")
    assert shown[12].startswith("req-i0-") and "…" in shown[12]


def test_what_the_gmanager_says_is_shown_where_it_answers():
    plans = tuple(
        PlanStatus(
            request_id="r", debtor_id="i0", destination="i1", num_blocks=2, ago_s=9.0, predicted_tokens_per_s=10.0,
            achieved_tokens_per_s=achieved,
        )
        for achieved in (None, 4.0, 8.0)
    )  # fmt: skip
    debts = (DebtEdge("i1", "i0", 40), DebtEdge("i9", "i1", 3))
    runs = tuple(
        DgfmRunStatus(members="i0, i1", ago_s=9.0, predicted_blocks=2000, home_blocks=home) for home in (None, 900)
    )
    state = ClusterState(policy="greedy", debts=debts, num_debts=2, plans=plans, num_plans=12, runs=runs, num_runs=2)
    shown = lines(msgspec.structs.replace(busy(2, 1), cluster=state), width=80)
    assert shown[1:4] == [
        "tokens/s: prompt 2,000, generated 20.0   requests: 2 running, 2 waiting",
        "moves planned: 12 (+10.0 tokens/s each predicted, +6.0 achieved)",
        "cycles of debts swapped: 2 (900 of 2,000 rBlocks came home)",
    ]
    loans = [" ".join(line.split()) for line in shown]
    assert "i0 → i1 40 rBlocks 512 tokens 1 request" in loans
    assert "i1 → i9 3 rBlocks 0 tokens 0 requests" in loans


def test_an_idle_cluster_has_no_loans_and_no_requests():
    shown = lines(View("t", Sample(1.0, (status("i0"),))))
    assert len(shown) == 5
    assert shown[1] == "tokens/s: prompt -, generated -   requests: 0 running, 0 waiting"


def test_a_cluster_that_is_not_there_is_a_note():
    shown = lines(View("t", Sample(1.0), notes=("nobody answers",)))
    assert shown == ["t", "nobody answers", "tokens/s: prompt -, generated -   requests: 0 running, 0 waiting"]


@pytest.mark.parametrize("width", [20, 40, 60, 80, 200])
@pytest.mark.parametrize("height", [6, 12, 24, 60])
@pytest.mark.parametrize(("instances", "requests"), [(1, 0), (4, 3), (30, 5)])
def test_it_fits_every_terminal(width, height, instances, requests):
    view = busy(instances, requests, name="a-rather-long-name-of-a-host-")
    shown = lines(view, width=width, height=height)
    assert len(shown) <= height
    assert max(map(len, shown)) <= width


def test_four_instances_with_loans_and_requests_fit_80_columns_and_24_lines():
    shown = lines(busy(), height=24)
    text = "\n".join(shown)
    assert len(shown) <= 24
    assert all(f"\ni{index} ready" in text for index in range(4))
    assert "i3 → i2 96 rBlocks" in text
    assert shown[-1].startswith("and ") and shown[-1].endswith(" more")


@pytest.mark.parametrize("state", ["unreachable", "dead"])
def test_one_that_does_not_answer_has_no_numbers(state):
    view = View("t", Sample(1.0, (status("i0", running=1), status("i1", state=state, running=3, waiting=2))))
    shown = lines(view)
    assert shown[1].endswith("requests: 1 running, 0 waiting")
    assert shown[-1].split() == ["i1", state, *"-------"]


def test_without_a_width_nothing_is_cut():
    console = Console(file=io.StringIO(), width=ANY_WIDTH)
    with console.capture() as captured:
        console.print(render(busy(name="a-rather-long-name-of-a-host-"), width=None))
    out = captured.get()
    assert "…" not in out and "a-rather-long-name-of-a-host-0 ready" in out
    assert f"req-a-rather-long-name-of-a-host-0-{2:032d} a-rather-long-name-of-a-host-0 " in out
    assert max(map(len, out.splitlines())) < 300


def test_narrow_terminals_see_less():
    assert "borrowed" not in lines(busy(), width=60)[5] and "run" in lines(busy(), width=60)[5]
    assert lines(busy(), width=60)[3] == "rBlocks of a pool: █ local  ▓ lent  ▒ reserved  · free"
    assert lines(busy(), width=40)[5].split() == ["id", "state", "pool", "in", "use"]


def test_plain_terminals_get_plain_signs():
    assert all(line.isascii() for line in lines(busy(), width=120, ascii_only=True))


def test_names_are_not_markup():
    view = View("t", Sample(1.0, (status("[red]x[/red]", requests=(request("[bold]", "i0", ("[x]", 5)),)),)))
    text = "\n".join(lines(view, width=120))
    assert "[red]x[/red]" in text and "[bold]" in text and "[x] 5" in text


@pytest.mark.parametrize(
    ("blocks", "bar"),
    [
        (SlotCounts(), "             0%"),
        (SlotCounts(total=10, free=10), "··········    0%"),
        (SlotCounts(total=10, local=10), "██████████  100%"),
        (SlotCounts(total=8, free=2, local=2, lent=3, reserved=1), "██▓▓▓▓▒▒··   75%"),
        (SlotCounts(total=1000, free=999, local=1), "··········    0%"),
    ],
)
def test_the_bar_of_a_pool(blocks, bar):
    shown = pool_bar(blocks, 10).plain
    assert len(shown) == 15
    assert shown.split() == bar.split()
