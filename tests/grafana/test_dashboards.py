"""Dashboards: expressions parse, names exist, variables resolve, every panel says its unit and what it shows."""

import json
import re
import runpy
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from documents import ROOT

from kopt.core.alerts.catalogue import recorded_rules
from kopt.core.dashboards.catalogue import DATASOURCE, Dashboard, dashboards, document
from tests.alerts.test_rules import promtool
from tests.metric_names import named_in

VENDORS = Path(__file__).parent / "vendor_metrics"
UNITS = {*("short", "percentunit", "percent", "celsius", "watt", "s", "h"), *("bytes", "Bps", "reqps", "currencyUSD")}
"""Of Grafana's (``packages/grafana-data/src/valueFormats/categories.ts``), those that are used."""
BUILT_IN = {"__rate_interval": "5m"}
_VARIABLE = re.compile(r"\$\{?(\w+)")
_LABEL_VALUES = re.compile(r"label_values\((.+), ([a-z_]+)\)")
every = pytest.mark.parametrize("dashboard", dashboards(), ids=lambda each: each.name)


def expressions(dashboard: Dashboard) -> Iterator[str]:
    yield from (query.expr for panel in dashboard.panels for query in panel.queries)
    for variable in dashboard.variables:
        if match := _LABEL_VALUES.fullmatch(variable.values):
            yield match[1]


def filled_in(expr: str, dashboard: Dashboard) -> str:
    """An expression as Grafana sends it, of everything that can be selected."""
    values = {variable.name: variable.text or ".*" for variable in dashboard.variables}
    return _VARIABLE.sub(lambda match: {**values, **BUILT_IN}[match[1]], expr)


def vendors_names() -> set[str]:
    lines = [line for path in VENDORS.glob("*.txt") for line in path.read_text(encoding="utf-8").splitlines()]
    return {line for line in lines if line and not line.startswith("#")}


@pytest.mark.services
def test_every_expression_parses(tmp_path: Path) -> None:
    if shutil.which("promtool") is None:
        pytest.skip("promtool is not installed (Debian package prometheus)")
    groups = [
        {
            "name": dashboard.name,
            "rules": [
                {"record": f"panel:{number}", "expr": filled_in(expr, dashboard)}
                for number, expr in enumerate(expressions(dashboard))
            ],
        }
        for dashboard in dashboards()
    ]
    path = tmp_path / "rules.yaml"
    path.write_text(yaml.safe_dump({"groups": groups}))
    done = subprocess.run(["promtool", "check", "rules", path], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.services
def test_a_kind_that_was_there_all_day_has_24_hours_of_it(tmp_path: Path) -> None:
    """At a full minute, where a whole day has a sample too many before Prometheus 3, and between minutes."""
    (panel,) = (
        each for board in dashboards() for each in board.panels if each.title == "GPU-hours of the last 24 hours"
    )
    samples = [{"labels": '{kind="charged"}', "value": 24.0}]
    cases = [
        {"expr": panel.queries[0].expr, "eval_time": at, "exp_samples": samples} for at in ("25h", "25h1s", "25h59s")
    ]
    series = [{"series": 'kopt_cost_gpus{kind="charged"}', "values": "1x1600"}]
    test = {"tests": [{"interval": "1m", "input_series": series, "promql_expr_test": cases}]}
    (tmp_path / "test.yaml").write_text(yaml.safe_dump(test))
    promtool("test", "rules", "test.yaml", folder=tmp_path)


@every
def test_names_are_of_rules_of_vendors_or_ours(dashboard: Dashboard) -> None:
    """Ours are looked for in what components show, in ``test_names_in_components.py``."""
    known = vendors_names() | {rule.name for rule in recorded_rules()}
    for expr in expressions(dashboard):
        names = named_in(expr)
        assert names, expr
        assert {name for name in names if not name.startswith("kopt_")} <= known, expr


@every
def test_panels_say_what_they_show(dashboard: Dashboard) -> None:
    titles = [panel.title for panel in dashboard.panels]
    assert len(set(titles)) == len(titles)
    for panel in dashboard.panels:
        assert panel.unit in UNITS, panel.title
        assert re.fullmatch(r"[A-Z\d].{20,}\.", panel.description), panel.title
        assert all(query.legend for query in panel.queries), panel.title


@every
def test_variables_resolve_and_are_used(dashboard: Dashboard) -> None:
    declared = {variable.name for variable in dashboard.variables}
    used = {name for expr in expressions(dashboard) for name in _VARIABLE.findall(expr)} - BUILT_IN.keys()
    assert used == declared
    for variable in dashboard.variables:
        assert bool(variable.values) != bool(variable.text)
        assert not variable.values or _LABEL_VALUES.fullmatch(variable.values), variable.name


@every
def test_labels_in_legends_are_kept_by_their_expressions(dashboard: Dashboard) -> None:
    """An aggregation drops labels; a legend of one that is gone shows nothing."""
    for panel in dashboard.panels:
        for query in panel.queries:
            kept = re.search(r"\bby\s*\(([^)]*)\)", query.expr)
            if kept is not None:
                labels = {label.strip() for label in kept[1].split(",")}
                assert set(re.findall(r"\{\{(\w+)\}\}", query.legend)) <= labels, query.expr


def test_the_chart_has_the_dashboards_of_the_catalogue() -> None:
    pytest.importorskip("grafana_foundation_sdk")
    module = runpy.run_path(str(ROOT / "scripts" / "chart_dashboards.py"))
    folder: Path = module["FOLDER"]
    written = {path.name: path.read_text(encoding="utf-8") for path in folder.glob("*.json")}
    assert written == module["texts"](), "run: python scripts/chart_dashboards.py"


@every
def test_the_document_is_one_of_grafanas(dashboard: Dashboard) -> None:
    """With numbers of their own, inside of the 24 columns, on nothing else, and each from the selected Prometheus."""
    content = json.loads(document(dashboard.name))
    assert content["uid"] == dashboard.uid
    assert content["templating"]["list"][0]["name"] == DATASOURCE
    panels = content["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    cells = set()
    for panel in panels:
        grid = panel["gridPos"]
        own = {(x, y) for x in range(grid["x"], grid["x"] + grid["w"]) for y in range(grid["y"], grid["y"] + grid["h"])}
        assert max(x for x, _ in own) < 24, panel["title"]
        assert not own & cells, panel["title"]
        cells |= own
        if panel["type"] != "row":
            assert panel["datasource"]["uid"] == f"${{{DATASOURCE}}}"
