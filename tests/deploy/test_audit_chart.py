"""Whatever acts in the cluster is in the audit log, once there is an endpoint to keep it."""

from typing import Any

import pytest
import yaml
from chart import CHART

Object = dict[str, Any]
ACTING = {"controller", "webhook", "extender"}
"""Subcommands of kopt."""
PAGES = "kopt-pages"


def switched_on(values: Object) -> Object:
    """The same with every component of the chart."""
    defaults = yaml.safe_load((CHART / "values.yaml").read_text())
    for key, value in defaults.items():
        if isinstance(value, dict) and "enabled" in value:
            values[key] = values.get(key, {}) | {"enabled": True}
    values["nodeExecutor"]["keysConfigMap"] = "keys"
    return values


def acting(objects: list[Object]) -> dict[str, Object]:
    """Deployments of what acts, by name."""
    result = {}
    for document in objects:
        if document["kind"] == "Deployment" and document["metadata"]["name"] != PAGES:
            (container,) = document["spec"]["template"]["spec"]["containers"]
            if container["args"][0] in ACTING:
                result[document["metadata"]["name"]] = document
    return result


def variables(deployment: Object) -> dict[str, str]:
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    return {item["name"]: item.get("value", "") for item in container["env"]}


def test_everything_that_acts_sends_its_records(charts: Any, everything: Object) -> None:
    objects = charts.render(switched_on(everything))
    deployments = acting(objects)
    assert len(deployments) >= 13
    named = {(item["kind"], item["metadata"]["name"]): item for item in objects}
    writers = {item["name"] for item in named["ClusterRoleBinding", "kopt-predictions-audit-writer"]["subjects"]}
    for name, deployment in deployments.items():
        pod = deployment["spec"]["template"]["spec"]
        assert variables(deployment)["KOPT_AUDIT_URL"].startswith("http"), name
        assert pod["serviceAccountName"] in writers, name
        assert "predictions-token" in {volume["name"] for volume in pod["volumes"]}, name
        assert "predictions-token" in {mount["name"] for mount in pod["containers"][0]["volumeMounts"]}, name
        ports = {
            port["port"]
            for rule in named["NetworkPolicy", name]["spec"]["egress"]
            for port in rule.get("ports", [])
            if any("podSelector" in peer for peer in rule.get("to", []))
        }
        assert 8000 in ports, name
    callers = {
        peer["podSelector"]["matchLabels"]["app.kubernetes.io/component"]
        for rule in named["NetworkPolicy", "kopt-predictions"]["spec"]["ingress"]
        for peer in rule.get("from", [])
        if "kubernetes.io/component" in str(peer.get("podSelector"))
    }
    assert {account.removeprefix("kopt-") for account in writers} <= callers
    # Who may only ask is no writer.
    assert PAGES not in writers


NO_ENDPOINT = {
    "predictions": {"deploy": False},
    **{name: {"enabled": False} for name in ("logtail", "lending", "ingest", "runs", "pairwise", "autoscaling")},
}


@pytest.mark.parametrize("values", [{"audit": {"enabled": False}}, NO_ENDPOINT], ids=["off", "no endpoint"])
def test_it_can_be_left_out(charts: Any, everything: Object, values: Object) -> None:
    switched_on(everything)
    for key, value in values.items():
        everything[key] = everything.get(key, {}) | value
    objects = charts.render(everything)
    deployments = acting(objects)
    assert deployments
    assert not any("KOPT_AUDIT_URL" in variables(deployment) for deployment in deployments.values())
    assert not any(
        item["metadata"]["name"] == "kopt-predictions-audit-writer" and item["kind"] == "ClusterRoleBinding"
        for item in objects
    )
