"""The Grafana board asks for nothing that a gateway does not export."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families as families_of

from distkv.config import GatewayConfig
from tests.gateway.harness import silence
from tests.gateway.operations.promql import RATES, Binary, Call, Number, Selector, labels_of, parse, walk

ROOT = Path(__file__).parents[3]
BOARD: dict[str, Any] = json.loads((ROOT / "configs/grafana/distkv.json").read_text(encoding="utf-8"))
PANELS = [panel for panel in BOARD["panels"] if panel["type"] != "row"]
EXPRESSIONS = [(panel["title"], target["expr"]) for panel in PANELS for target in panel["targets"]]
VARIABLES = {one["name"] for one in BOARD["templating"]["list"]}
COUNTED = ("_total", "_bucket", "_sum", "_count")
Exported = dict[str, dict[str, set[str]]]
"""Sample name → label → its values."""

each_expression = pytest.mark.parametrize(
    ("title", "text"), EXPRESSIONS, ids=[f"{title}-{index}" for index, (title, _) in enumerate(EXPRESSIONS)]
)


@pytest.fixture
async def exported(start: Callable[..., Any]) -> Exported:
    """What a gateway says that has served a request, and so has metrics of HTTP too."""
    gateway = await start(silence)
    await gateway.complete([1], max_tokens="wrong")
    answer = await gateway.http.get("/metrics")
    found: Exported = {}
    for family in families_of(answer.text):
        for sample in family.samples:
            labels = found.setdefault(sample.name, {})
            for name, value in sample.labels.items():
                labels.setdefault(name, set()).add(value)
    return found


async def test_every_expression_finds_what_it_asks_for(exported: Exported) -> None:
    known = {name: set(labels) for name, labels in exported.items()}
    for title, text in EXPRESSIONS:
        tree = parse(text)
        for selector, outer in walk(tree):
            assert selector.name in exported, f"{title}: there is no metric {selector.name}"
            for label, (operator, value) in selector.matchers.items():
                values = exported[selector.name].get(label)
                assert values is not None, f"{title}: {selector.name} has no label {label}"
                if operator == "=~":
                    assert value == f"${label}" and label in VARIABLES
                else:
                    assert value in values, f"{title}: {label} of {selector.name} is never {value}"
            is_rate = bool(outer) and outer[-1].name in RATES
            assert selector.is_range == is_rate == selector.name.endswith(COUNTED), f"{title}: {text}"
            is_quantile = any(call.name == "histogram_quantile" for call in outer)
            assert is_quantile == selector.name.endswith("_bucket"), f"{title}: {text}"
        assert labels_of(tree, known) is not None
    for name in ("model_name", "instance_id"):
        (variable,) = (one for one in BOARD["templating"]["list"] if one["name"] == name)
        (selector,) = (found for found, _ in walk(parse(variable["definition"].rpartition(",")[0] + ")")))
        assert selector.name in exported and name in exported[selector.name]
        assert variable["definition"] == variable["query"]["query"]


@each_expression
def test_quantiles_are_of_buckets_by_le_and_legends_name_labels(title: str, text: str) -> None:
    tree = parse(text)
    quantiles = [tree] if isinstance(tree, Call) and tree.name == "histogram_quantile" else []
    for call in quantiles:
        number, summed = call.arguments
        assert isinstance(number, Number) and 0 < number.value < 1
        assert isinstance(summed, Call) and summed.name == "sum" and "le" in (summed.by or ())
    targets = [target for panel in PANELS if panel["title"] == title for target in panel["targets"]]
    (target,) = (one for one in targets if one["expr"] == text)
    named = set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))
    by = set(re.findall(r"\w+", " ".join(re.findall(r"\bby \(([^)]*)\)", text))))
    assert named <= by


def test_every_instance_counts_once_however_many_gateways_tell_of_it() -> None:
    for title, text in EXPRESSIONS:
        for selector, outer in walk(parse(text)):
            if "instance_id" in selector.matchers:
                by = [call.by for call in outer if call.name in ("max", "min")]
                assert by and "instance_id" in (by[-1] or ()), f"{title}: {text}"


def test_it_is_a_board_of_its_schema() -> None:
    assert BOARD["schemaVersion"] == 39 and BOARD["title"] == BOARD["uid"] == "distkv"
    assert not any(key.startswith("__") for key in BOARD), "it is provisioned, not only imported"
    ids = [panel["id"] for panel in BOARD["panels"]]
    assert len(set(ids)) == len(ids)
    cells: set[tuple[int, int]] = set()
    for panel in BOARD["panels"]:
        place = panel["gridPos"]
        assert place.keys() == {"h", "w", "x", "y"} and place["x"] + place["w"] <= 24
        own = {(place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])}
        assert not own & cells, f"{panel['title']} lies on another one"
        cells |= own
        for target in panel.get("targets", ()):
            assert target["datasource"] == panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
        assert len({target["refId"] for target in panel.get("targets", ())}) == len(panel.get("targets", ()))
    assert {"datasource", "model_name", "instance_id"} == VARIABLES
    titles = " ".join(panel["title"].lower() for panel in PANELS)
    for shown in ("requests", "first token", "output token", "queue", "kv pool", "lent", "borrowed", "remote share",
                  "preemptions", "deaths", "debts", "moves planned", "cycles of debts", "gain of planned"):  # fmt: skip
        assert shown in titles


def test_prometheus_asks_the_gateway_where_it_listens() -> None:
    (job,) = yaml.safe_load((ROOT / "configs/grafana/prometheus.yml").read_text(encoding="utf-8"))["scrape_configs"]
    port = GatewayConfig(model="m").port
    assert job["metrics_path"] == "/metrics" and job["static_configs"] == [{"targets": [f"127.0.0.1:{port}"]}]


@pytest.mark.parametrize("text", ["rate(a[5m]", "nothing(a)", "sum by (a", "a{b}", 'a{b="c"', "a b", "a ? b", ""])
def test_the_parser_takes_nothing_else(text: str) -> None:
    with pytest.raises(ValueError, match="in "):
        parse(text)


def test_the_parser_sees_what_is_there() -> None:
    tree = parse('1 - sum by (a, le) (rate(m:x_total{a=~"$a", b!="c"}[$__rate_interval])) / (n)')
    assert isinstance(tree, Binary) and tree.operator == "/"
    selector = Selector("m:x_total", {"a": ("=~", "$a"), "b": ("!=", "c")}, True)
    assert [found for found, _ in walk(tree)] == [selector, Selector("n")]
    assert [[call.name for call in outer] for _, outer in walk(tree)] == [["sum", "rate"], []]
    known = {"m:x_total": {"a", "b", "le"}, "n": {"a"}}
    with pytest.raises(AssertionError):
        labels_of(tree, known)
    assert labels_of(tree, known | {"n": {"a", "le"}}) == {"a", "le"}
