"""The chart's PrometheusRule: the rules of the catalogue, without those that are left out."""

from typing import Any

from chart import CHART, NAMESPACE, RELEASE

from kopt.core.alerts.catalogue import rule_groups


def rendered(charts: Any, **rules: Any) -> list[dict[str, Any]]:
    objects = charts.render({"monitoring": {"labels": {"release": "monitoring"}, "rules": rules}})
    return [document for document in objects if document["kind"] == "PrometheusRule"]


def test_it_has_the_rules_of_the_catalogue(charts: Any) -> None:
    assert rendered(charts) == []
    (resource,) = rendered(charts, enabled=True)
    assert resource["spec"]["groups"] == rule_groups()
    assert resource["metadata"]["labels"]["release"] == "monitoring"


def test_rules_are_left_out_and_labelled(charts: Any) -> None:
    left_out = ["KoptGpuIdle", "KoptGpuMemoryFull"]
    (resource,) = rendered(charts, enabled=True, without=left_out, alertLabels={"team": "platform"})
    assert resource["spec"]["groups"] == rule_groups(left_out, {"team": "platform"})


def test_a_name_that_is_none_is_refused(charts: Any) -> None:
    values = {"monitoring": {"rules": {"enabled": True, "without": ["KoptGpuIddle"]}}}
    done = charts.run("template", RELEASE, CHART, "--namespace", NAMESPACE, values=values)
    assert done.returncode != 0
    assert "there is no alert KoptGpuIddle" in done.stderr
