"""``kopt alerts``."""

import json

import pytest
import yaml
from typer.testing import CliRunner

from kopt.cli.main import app
from kopt.core.alerts.catalogue import alert_rules


def run(*arguments: str, status: int = 0) -> str:
    done = CliRunner().invoke(app, ["alerts", *arguments])
    assert done.exit_code == status, done.output
    return done.output


def test_all_rules_are_listed_and_explained() -> None:
    rows = json.loads(run("-o", "json"))["rules"]
    assert [row["alert"] for row in rows] == [rule.alert for rule in alert_rules()]
    for name in ("KoptGpuXidFatal", "gpuxidfatal"):
        assert "Drain the node" in run("show", name)
    assert json.loads(run("show", "KoptGpuIdle", "-o", "json"))["rules"][0]["severity"] == "info"


def test_rules_are_written_for_both() -> None:
    groups = yaml.safe_load(run("rules", "--without", "KoptGpuIdle", "--label", "team=platform"))["groups"]
    alerts = [rule for group in groups for rule in group["rules"] if "alert" in rule]
    assert {rule.alert for rule in alert_rules()} - {rule["alert"] for rule in alerts} == {"KoptGpuIdle"}
    assert {rule["labels"]["team"] for rule in alerts} == {"platform"}
    resource = yaml.safe_load(run("rules", "--to", "prometheus-rule", "-n", "observing"))
    assert (resource["kind"], resource["metadata"]["namespace"]) == ("PrometheusRule", "observing")
    assert resource["spec"]["groups"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("show", "KoptGpuIddle"), "KoptGpuIdle"),
        (("rules", "--without", "GpuIddle"), "KoptGpuIdle"),
        (("rules", "--label", "team"), "NAME=VALUE"),
        (("rules", "--label", "severity=low"), "set severity themselves"),
        (("rules", "--to", "nagios"), "rule-file"),
    ],
)
def test_what_is_not_there_is_refused(arguments: tuple[str, ...], said: str) -> None:
    assert said in run(*arguments, status=2)
