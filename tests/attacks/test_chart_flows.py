"""Combinations of the chart's values: whoever is told to call somebody reaches them, and nobody else does."""

import functools
import random
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import combinations, product
from pathlib import Path
from typing import Any

import pytest
import yaml
from chart import CHART, Helm

from .chart_network import OUTSIDE, Network, Pod, behind_service, calls_of, pods_of, selects, target_port
from .chart_rendered import NAMESPACE, RELEASE, Object, rights_of

ON, OFF = {"enabled": True}, {"enabled": False}
URL = {"mlflowUri": "http://mlflow.mlops:5000", "database": {"secret": "kopt-database"}}
WEEKLY = {"name": "demand", "predictor": "demand", "schedule": "@weekly"}
SWITCHES: dict[str, list[Any]] = {
    "mode": ["observe", "enforce"],
    "webhook": [ON, OFF],
    "extender": [ON, OFF],
    "sizing": [ON, OFF | {"readLogs": False}],
    "scheduler": [{"deploy": False}, {"deploy": True}],
    "pairs": [OFF, ON],
    "staging": [OFF, ON],
    "ledger": [OFF, ON],
    "reallocation": [OFF, ON],
    "ingest": [OFF, ON],
    "autoscaling": [OFF, ON],
    "pages": [
        OFF,
        ON,
        ON | {"oidc": {"issuer": "https://login.example.com", "clientId": "kopt", "clientSecret": "oidc"}},
    ],
    "preemption": [OFF, ON, ON | {"plainPods": True}, ON | {"kai": True}],
    "logtail": [OFF, ON | {"form": "node"}, ON | {"form": "cluster"}],
    "topology": [OFF, ON, ON | {"privileged": True}],
    "telemetry": [OFF, ON, ON | {"exporterUrls": ["http://nvidia-dcgm-exporter.gpu-operator:9400/metrics"]}],
    "nodeExecutor": [OFF, ON | {"keysConfigMap": "keys"}],
    "training": [
        {},
        {
            "signingSecret": "kopt-signing",
            "jobs": [WEEKLY | {"arguments": ["--prometheus=http://prometheus.monitoring:9090"]}],
        },
    ],
    "predictions": [
        {},
        {"url": "http://kopt.example.com:8700"},
        {"url": "https://kopt.example.com", "auth": "none"},
        {"deploy": True} | URL,
        {"deploy": True, "auth": "none"} | URL,
        {"deploy": True, "redisUrl": "redis://redis.mlops/0"} | URL,
    ],
    "tracing": [{}, {"endpoint": "http://collector.monitoring:4318"}],
    "networkPolicy": [ON, ON | {"apiServer": {"cidrs": ["203.0.113.0/24"], "ports": [443]}}],
    "switchOff": [ON, OFF],
    "logs": [{}, {"namespaces": ["research"]}, {"everywhere": True}],
}
"""Every switch that adds or takes away a component, a right or a flow, with its positions."""
CALLS_PREDICTIONS = ("webhook", "sizing", "pairs", "reallocation", "logtail", "predictions", "networkPolicy")
"""Those that decide who is told to call the endpoint, where it is, and what is let through."""


def pairwise() -> Iterator[Object]:
    """Values in which every two positions of two switches occur together, as far as the chart allows them."""
    draw = random.Random(7)
    left = {
        ((a, i), (b, k))
        for a, b in combinations(SWITCHES, 2)
        for i in range(len(SWITCHES[a]))
        for k in range(len(SWITCHES[b]))
    }
    idle = 0
    while left and idle < 40:
        drawn = [_allowed({name: draw.randrange(len(each)) for name, each in SWITCHES.items()}) for _ in range(60)]
        best = max(drawn, key=lambda one: len(left & _pairs(one)))
        idle = 0 if left & _pairs(best) else idle + 1
        if left & _pairs(best):
            left -= _pairs(best)
            yield {name: SWITCHES[name][place] for name, place in best.items()}


def every_flow() -> Iterator[Object]:
    """Every combination of the switches that decide about calls of the endpoint; the others are drawn."""
    draw = random.Random(7)
    for positions in product(*(range(len(SWITCHES[name])) for name in CALLS_PREDICTIONS)):
        chosen = dict(zip(CALLS_PREDICTIONS, positions, strict=True))
        drawn = {name: chosen.get(name, draw.randrange(len(each))) for name, each in SWITCHES.items()}
        if _allowed(dict(drawn))["logtail"] == chosen["logtail"]:
            yield {name: SWITCHES[name][place] for name, place in _allowed(drawn).items()}


def _pairs(chosen: dict[str, int]) -> set[tuple[tuple[str, int], tuple[str, int]]]:
    return set(combinations(chosen.items(), 2))


def _allowed(chosen: dict[str, int]) -> dict[str, int]:
    """What the chart itself refuses is left out: a scheduler without the extender, a log agent without predictions, a
    training without a registry."""
    if chosen["extender"] == 1:
        chosen["scheduler"] = 0
    if chosen["predictions"] == 0:
        chosen["logtail"] = 0
    if "mlflowUri" not in SWITCHES["predictions"][chosen["predictions"]]:
        chosen["training"] = 0
    return chosen


@functools.cache
def _document(text: str) -> Object:
    """Most objects are the same in many renderings; parsing is what costs, and nothing here changes them."""
    return yaml.load(text, yaml.CSafeLoader) or {}


def _render(helm: Helm, values: Object) -> list[Object]:
    done = helm.run("template", RELEASE, CHART, "--namespace", NAMESPACE, values=values)
    assert done.returncode == 0, done.stderr
    return [document for text in re.split(r"^---$", done.stdout, flags=re.MULTILINE) if (document := _document(text))]


@pytest.fixture(scope="module", params=[pairwise, pytest.param(every_flow, marks=pytest.mark.thorough)])
def renderings(
    request: pytest.FixtureRequest, helm: Path, tmp_path_factory: pytest.TempPathFactory
) -> list[tuple[Object, list[Object]]]:
    """Combinations with their objects."""
    charts, values = Helm(helm, tmp_path_factory.mktemp("flows")), list(request.param())
    assert len(values) > 15
    with ThreadPoolExecutor(2) as workers:
        return list(zip(values, workers.map(functools.partial(_render, charts), values), strict=True))


def test_whoever_is_told_to_call_somebody_reaches_them(renderings: list[tuple[Object, list[Object]]]) -> None:
    seen: set[tuple[str, str]] = set()
    for values, objects in renderings:
        network = Network(objects)
        for call in calls_of(objects):
            assert call.to, (values, call.caller.name, call.said)
            for to in call.to:
                assert network.lets(call.caller, to, call.port), (
                    values,
                    call.caller.name,
                    call.said,
                    to.name,
                    call.port,
                )
            seen.add((call.caller.component, call.to[0].component or call.said, call.for_audit))
    callers = {who for who, to, for_audit in seen if to == "predictions" and not for_audit}
    assert callers == {"webhook", "sizing", "reallocation", "pairs", "ingest", "autoscaling", "pages", "logtail"}
    auditors = {who for who, to, for_audit in seen if to == "predictions" and for_audit}
    assert auditors == callers - {"pages", "logtail"} | {"extender", "preemption", "staging", "ledger"}
    assert ("scheduler", "extender", False) in seen


def test_whoever_calls_the_endpoint_has_a_token_and_the_right_to_call(
    renderings: list[tuple[Object, list[Object]]],
) -> None:
    for values, objects in renderings:
        predictions = values["predictions"]
        calls = [call for call in calls_of(objects) if "predictions" in call.said or "kopt.example" in call.said]
        tokens = predictions.get("auth", "token") == "token"
        for pod in (call.caller for call in calls):
            names = {one["name"] for one in pod.spec.get("volumes", ()) if "projected" in one}
            assert ("predictions-token" in names) is tokens, (values, pod.name)
        if predictions.get("deploy"):
            for role, for_audit in (("kopt-predictions-caller", False), ("kopt-predictions-audit-writer", True)):
                bound = [one for one in objects if one.get("roleRef", {}).get("name") == role]
                given = {(each["namespace"], each["name"]) for one in bound for each in one["subjects"]}
                asks = {call.caller.account for call in calls if call.for_audit is for_audit}
                assert given == (asks if tokens else set()), values


def test_metrics_and_reviews_reach_their_ports(renderings: list[tuple[Object, list[Object]]]) -> None:
    prometheus, server = Pod("prometheus", "monitoring"), Pod("api", address="203.0.113.1")
    for values, objects in renderings:
        network, pods = Network(objects), pods_of(objects)
        for pod in pods:
            for name, port in pod.ports().items():
                if name in ("probes", "metrics"):
                    assert network.lets(prometheus, pod, port), (values, pod.name, port)
        for one in objects:
            if one["kind"] == "Service":
                behind = behind_service(one, pods)
                assert behind, (values, one["metadata"]["name"])
                for port in one["spec"]["ports"]:
                    number = target_port(one, port["port"], behind)
                    if port["name"] in ("webhook", "reviews", "metrics-api"):
                        assert network.lets(server, behind[0], number), (values, one["metadata"]["name"])


def test_nobody_else_reaches_them(renderings: list[tuple[Object, list[Object]]]) -> None:
    labels = {"app.kubernetes.io/name": "kuberay-operator", "app.kubernetes.io/part-of": "kaiwo-optimizer"}
    for values, objects in renderings:
        network, pods = Network(objects), pods_of(objects)
        called = {(call.caller.component, to.component) for call in calls_of(objects) for to in call.to}
        strangers = [
            Pod("stranger", "research"),
            Pod("posing", "research", labels),
            Pod("posing", "research", labels | {"app.kubernetes.io/component": "webhook"}),
        ]
        for pod in pods:
            for stranger in strangers:
                for port in [*pod.ports().values(), 22]:
                    assert not network.lets(stranger, pod, port), (values, stranger, pod.name, port)
            for other in pods:
                needed = (other.component, pod.component) in called or other.component == pod.component
                for port in pod.ports().values():
                    assert needed or not network.lets(other, pod, port), (values, other.name, pod.name, port)
            assert not network.lets(pod, Pod("data", "research"), 8080), (values, pod.name)
            outward = {call.port for call in calls_of(objects) if call.caller == pod} | {443, 6443}
            for port in {22, 80, 4318, 5000, 6379, 8080, 8700} - outward:
                assert not network.lets(pod, Pod("outside", address=OUTSIDE), port), (values, pod.name, port)


def test_the_operator_is_known_by_its_namespace(renderings: list[tuple[Object, list[Object]]]) -> None:
    tried = 0
    for values, objects in renderings:
        heads = [one for one in pods_of(objects) if one.name == "kopt-predictions-head"]
        for head in heads:
            tried += 1
            operator = {"app.kubernetes.io/name": "kuberay-operator"}
            assert Network(objects).lets(Pod("operator", "kuberay-system", operator), head, 8265), values
            assert not Network(objects).lets(Pod("operator", "research", operator), head, 8265), values
            assert not Network(objects).lets(Pod("other", "kuberay-system"), head, 8265), values
    assert tried


def test_what_is_named_is_there(renderings: list[tuple[Object, list[Object]]]) -> None:
    for values, objects in renderings:
        accounts = {
            (one["metadata"]["namespace"], one["metadata"]["name"])
            for one in objects
            if one["kind"] == "ServiceAccount"
        }
        pods = pods_of(objects)
        used = {pod.account for pod in pods}
        assert used <= accounts, values
        assert accounts - used <= {(NAMESPACE, "kopt-pages")}, "an account that nobody runs as"
        roles = {(one["kind"], one["metadata"].get("namespace", ""), one["metadata"]["name"]) for one in objects}
        for one in objects:
            for subject in one.get("subjects", ()):
                assert (subject["namespace"], subject["name"]) in accounts, (values, one["metadata"]["name"])
            if reference := one.get("roleRef"):
                space = one["metadata"].get("namespace", "") if reference["kind"] == "Role" else ""
                there = (reference["kind"], space, reference["name"]) in roles
                assert there or reference["name"].startswith(("system:", "extension-")), (values, reference)
            for found in re.findall(r"system:serviceaccount:([a-z-]+):([a-z-]*[a-z])'", str(one)):
                assert found in accounts, (values, one["metadata"]["name"])
            if one["kind"] == "NetworkPolicy" and one["metadata"]["name"] != "kopt-pairs-tests":
                assert any(selects(one["spec"]["podSelector"], pod.labels) for pod in pods), (values, one["metadata"])
            if one["kind"] == "ValidatingAdmissionPolicyBinding":
                assert ("ValidatingAdmissionPolicy", "", one["spec"]["policyName"]) in roles, values


def test_every_pod_is_looked_at_by_a_policy(renderings: list[tuple[Object, list[Object]]]) -> None:
    for values, objects in renderings:
        policies = [one for one in objects if one["kind"] == "NetworkPolicy"]
        for pod in pods_of(objects):
            own = [
                one["spec"]
                for one in policies
                if one["metadata"]["namespace"] == pod.namespace and selects(one["spec"]["podSelector"], pod.labels)
            ]
            assert {"Ingress", "Egress"} <= {each for one in own for each in one["policyTypes"]}, (values, pod.name)
        assert not [one for one in rights_of(objects) if "*" in (one.verb, one.group, one.resource)]
