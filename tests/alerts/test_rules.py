"""Every rule fires on its example, not before and not after, as promtool evaluates them; all that is named is there."""

import re
import runpy
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from documents import ROOT

from kopt.core.alerts.catalogue import AlertRule, Severity, alert_rules, kinds, recorded_rules, rule_groups
from kopt.core.dashboards.catalogue import dashboards
from kopt.core.hardware import gpu_telemetry
from kopt.core.hardware.gpu_telemetry import FAULTS
from kopt.data.gpu_hours import QUERIES
from tests.metric_names import named_in

_OURS = re.compile(r"\bkopt_[a-z_]+")


def promtool(*arguments: str | Path, folder: Path) -> None:
    if shutil.which("promtool") is None:
        pytest.skip("promtool is not installed (Debian package prometheus)")
    done = subprocess.run(
        ["promtool", *arguments], cwd=folder, capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stdout + done.stderr


def groups_of(rule: AlertRule) -> list[dict[str, Any]]:
    """A rule and the recorded series that it reads, without annotations, which promtool would compare as well."""
    expressions = {recorded.name: recorded.expr for recorded in recorded_rules()}
    needed, new = set[str](), named_in(rule.expr)
    while new := {name for name in new if name in expressions} - needed:
        needed |= new
        new = set().union(*(named_in(expressions[name]) for name in new))
    groups = []
    for group in rule_groups():
        kept = [each for each in group["rules"] if each.get("record") in needed or each.get("alert") == rule.alert]
        for each in kept:
            each.pop("annotations", None)
        if kept:
            groups.append({**group, "rules": kept})
    return groups


def case_of(rule: AlertRule) -> dict[str, Any]:
    example = rule.example
    fired = {"exp_labels": {**example.labels, "severity": rule.severity.value, "kind": rule.kind}}
    times: list[tuple[str, list[Any]]] = [
        (example.quiet_at, []),
        (example.fires_at, [fired]),
        (example.resolved_at, []),
    ]
    return {
        "interval": "1m",
        "input_series": [{"series": name, "values": values} for name, values in example.series.items()],
        "alert_rule_test": [{"eval_time": at, "alertname": rule.alert, "exp_alerts": alerts} for at, alerts in times],
    }


@pytest.mark.services
@pytest.mark.parametrize("kind", kinds())
def test_rules_fire_and_resolve(kind: str, tmp_path: Path) -> None:
    files = []
    for rule in (rule for rule in alert_rules() if rule.kind == kind):
        # Files of their own: promtool evaluates every rule of a file for each of its tests.
        (tmp_path / f"{rule.name}.rules.yaml").write_text(yaml.safe_dump({"groups": groups_of(rule)}))
        files.append(f"{rule.name}.yaml")
        test = {"rule_files": [f"{rule.name}.rules.yaml"], "evaluation_interval": "1m", "tests": [case_of(rule)]}
        (tmp_path / files[-1]).write_text(yaml.safe_dump(test))
    promtool("test", "rules", *files, folder=tmp_path)


KOPT, COUNT, LAST = "kopt_gpu_recent_xid_errors", "DCGM_EXP_XID_ERRORS_COUNT", "DCGM_FI_DEV_XID_ERRORS"


@pytest.mark.services
@pytest.mark.parametrize(
    "series",
    [
        {f'{KOPT}{{node="{node}",gpu="3",xid="79"}}': "_x5 1x10 stale stale stale 1x10 stale" for node in "ab"},
        {f'{COUNT}{{Hostname="{node}",gpu="3",xid="79"}}': "0x5 1x10 stale stale stale 1x10 0x60" for node in "ab"},
        # Where the exporter's own label is left out, the target's says on which node it is.
        {f'{LAST}{{node="{node}",gpu="3"}}': "0x5 79x10 stale stale stale 79x10 0x60" for node in "ab"},
        {f'{LAST}{{Hostname="{node}",node="z",gpu="3"}}': "0x5 79x10 stale stale stale 79x10 0x60" for node in "ab"},
    ],
    ids=["agent", "counts", "last", "last-with-hostname"],
)
def test_an_xid_is_one_alert_for_each_gpu_whoever_tells_of_it_and_outlasts_a_failed_scrape(
    series: dict[str, str], tmp_path: Path
) -> None:
    (rule,) = (rule for rule in alert_rules() if rule.name == "GpuXidFatal")
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump({"groups": groups_of(rule)}))
    own = {"severity": rule.severity.value, "kind": rule.kind, "gpu": "3", "xid": "79"}
    fires = [{"exp_labels": {**own, "node": node}} for node in "ab"]
    times = {"4m": [], "8m": fires, "17m": fires, "19m": fires, "22m": fires, "40m": []}
    test = {
        "rule_files": ["rules.yaml"],
        "evaluation_interval": "1m",
        "tests": [
            {
                "interval": "1m",
                "input_series": [{"series": name, "values": values} for name, values in series.items()],
                "alert_rule_test": [
                    {"eval_time": at, "alertname": rule.alert, "exp_alerts": alerts} for at, alerts in times.items()
                ],
            }
        ],
    }
    (tmp_path / "test.yaml").write_text(yaml.safe_dump(test))
    promtool("test", "rules", "test.yaml", folder=tmp_path)


@pytest.mark.services
def test_unusual_demand_is_told_with_what_was_expected(tmp_path: Path) -> None:
    (rule,) = (rule for rule in alert_rules() if rule.name == "DemandUnusual")
    groups = [group for group in rule_groups() if group["name"] == f"kopt-{rule.kind}"]
    (document,) = (each for each in groups[0]["rules"] if each["alert"] == rule.alert)
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump({"groups": [{"name": "one", "rules": [document]}]}))
    case = case_of(rule)
    case["input_series"] += [
        {"series": f'kopt_demand_anomaly_{name}{{service="{service}"}}', "values": values}
        for service, observed, expected in (("research/chat", "12.5x120", "400x120"), ("other", "7x120", "7x120"))
        for name, values in (("observed", observed), ("expected", expected))
    ]
    summary = (
        "Demand of research/chat is lower than its past lets expect: 12.5 in the newest five minutes, where 400 was "
        "expected."
    )
    annotations = {"summary": summary, "description": document["annotations"]["description"]}
    case["alert_rule_test"][1]["exp_alerts"][0]["exp_annotations"] = annotations
    test = {"rule_files": ["rules.yaml"], "evaluation_interval": "1m", "tests": [case]}
    (tmp_path / "test.yaml").write_text(yaml.safe_dump(test))
    promtool("test", "rules", "test.yaml", folder=tmp_path)


@pytest.mark.services
def test_what_is_written_for_a_prometheus_is_valid(tmp_path: Path) -> None:
    """Templates of summaries included."""
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump({"groups": rule_groups(labels={"team": "platform"})}))
    promtool("check", "rules", "rules.yaml", folder=tmp_path)


def test_each_kind_has_each_severity() -> None:
    for kind in kinds():
        assert {rule.severity for rule in alert_rules() if rule.kind == kind} == set(Severity)


def test_names_are_unique_and_summaries_name_labels_that_the_alert_has() -> None:
    names = [rule.name for rule in alert_rules()]
    assert len(set(names)) == len(names)
    for rule in alert_rules():
        named = set(re.findall(r"\$labels\.([a-z_]+)", rule.summary))
        assert named <= set(rule.example.labels), rule.name


def test_what_is_evaluated_more_often_goes_by_series_that_are_scraped_more_often() -> None:
    """And by a recorded one of dcgm-exporter, which would be dear to look at as often."""
    often = {rule.name: named_in(rule.expr) for rule in alert_rules() if rule.every}
    assert set(often) == {"GpuXidFatal", "GpuLost"}
    ours = {name for named in often.values() for name in named if name.startswith("kopt_")}
    assert ours == set(FAULTS)
    (group,) = (group for group in rule_groups() if group["name"] == "kopt-gpu-3s")
    assert group["interval"] == "3s"
    assert {(rule["alert"], rule["for"]) for rule in group["rules"]} == {
        ("KoptGpuXidFatal", "0m"),
        ("KoptGpuLost", "1m"),
    }


def test_recorded_series_are_used_and_used_ones_recorded() -> None:
    panels = [query.expr for dashboard in dashboards() for panel in dashboard.panels for query in panel.queries]
    rules = [rule.expr for rule in (*alert_rules(), *recorded_rules())]
    named: set[str] = set().union(*(named_in(expr) for expr in (*rules, *panels, *QUERIES)))
    assert {name for name in named if ":" in name} == {rule.name for rule in recorded_rules()}


def test_metrics_of_ours_are_those_that_components_have() -> None:
    sources = {
        path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8")
        for folder in ("controllers", "serving", "cluster", "agents")
        for path in (ROOT / folder).rglob("*.py")
    }
    every = "\n".join(sources.values())
    for rule in alert_rules():
        for name in _OURS.findall(rule.expr):
            if name == "kopt_":
                continue
            stem = name.removesuffix("_total")
            controller, _, gauge = stem.removeprefix("kopt_").partition("_")
            own = sources.get(f"controllers/{controller}/main.py", "")
            declared = any(f'self.{way}("{gauge}"' in own for way in ("gauge", "gauge_of_stepper"))
            exported = name == gpu_telemetry.UP or name.removeprefix(gpu_telemetry.PREFIX) in gpu_telemetry.BY_NAME
            assert f'"{stem}"' in every or declared or exported, (rule.name, name)
    assert 'self.gauge("leading"' in sources["cluster/runtime/manager.py"]


def test_the_chart_has_the_rules_of_the_catalogue() -> None:
    module = runpy.run_path(str(ROOT / "scripts" / "chart_alerts.py"))
    assert module["PATH"].read_text(encoding="utf-8") == module["text"](), "run: python scripts/chart_alerts.py"
