"""The pairwise benchmark controller as the chart installs it, and `kopt off` with a test that runs."""

import base64
import json
import subprocess
from collections.abc import Callable
from typing import Any

import pytest
from controlplane.plane import ControlPlane
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from replicas import KOPT

SYSTEM, SPACE = "kopt-system", "kopt-benchmarks"
Object = dict[str, Any]


def rendered(charts: Any, **pairs: Any) -> list[Object]:
    return list(charts.render({"pairs": {"enabled": True, **pairs}}))


def named(objects: list[Object], kind: str, name: str, namespace: str = "") -> Object:
    (found,) = [
        one
        for one in objects
        if (one["kind"], one["metadata"]["name"]) == (kind, name)
        and namespace in ("", one["metadata"].get("namespace", ""))
    ]
    return found


def test_it_is_off_unless_it_is_asked_for(charts: Any) -> None:
    off = charts.render()
    assert not [one for one in off if "pairs" in one["metadata"]["name"] or one["metadata"].get("namespace") == SPACE]


def test_its_tests_run_in_a_namespace_of_their_own(charts: Any) -> None:
    objects = rendered(charts, podSecurity="privileged")
    labels = named(objects, "Namespace", SPACE)["metadata"]["labels"]
    assert labels["pod-security.kubernetes.io/enforce"] == "privileged"
    arguments = named(objects, "Deployment", "kopt-pairs")["spec"]["template"]["spec"]["containers"][0]["args"]
    assert f"--tests-namespace={SPACE}" in arguments
    assert not [one for one in arguments if one.startswith("--predictions")]
    rules = named(objects, "ClusterRole", "kopt-pairs")["rules"]
    assert not [one for one in rules if "jobs" in one["resources"] or "pods/log" in one["resources"]]
    policy = named(objects, "NetworkPolicy", "kopt-pairs-tests", SPACE)["spec"]
    assert policy["ingress"] == [{"from": [{"podSelector": {}}]}]
    assert "Namespace" not in {one["kind"] for one in rendered(charts, createNamespace=False)}
    done = charts.run(
        "template",
        "kopt",
        "deploy/chart",
        "--namespace",
        SYSTEM,
        values={"pairs": {"enabled": True, "namespace": SYSTEM}},
    )
    assert "pairwise.namespace has to be another" in done.stderr


def test_the_endpoint_is_told_where_there_is_one(charts: Any) -> None:
    values = {"pairs": {"enabled": True, "cluster": "north"}, "predictions": {"url": "http://kopt.example.com:8700"}}
    objects = charts.render(values)
    arguments = named(objects, "Deployment", "kopt-pairs")["spec"]["template"]["spec"]["containers"][0]["args"]
    assert {"--predictions=http://kopt.example.com:8700", "--cluster=north"} <= set(arguments)
    rules = named(objects, "ClusterRole", "kopt-pairs")["rules"]
    assert [one["verbs"] for one in rules if one["resources"] == ["nodetopologies"]] == [["list", "watch"]]


@pytest.fixture(scope="module")
def installed(control_plane: ControlPlane, install: Callable[..., None]) -> ControlPlane:
    values = {
        "pairs": {"enabled": True},
        "webhook": {"enabled": False},
        "sizing": {"enabled": False},
        "extender": {"enabled": False},
    }
    install(values)
    key = control_plane.api.get("v1", "Secret", "kopt-pairs-ssh", SPACE)["data"]
    install(values)
    assert control_plane.api.get("v1", "Secret", "kopt-pairs-ssh", SPACE)["data"] == key, "an upgrade keeps the key"
    load_pem_private_key(base64.b64decode(key["ssh-privatekey"]), None)
    return control_plane


def test_off_ends_the_tests_and_nobody_elses_jobs(installed: ControlPlane) -> None:
    pod = {"restartPolicy": "Never", "containers": [{"name": "x", "image": "x"}]}
    for name, labels in (
        ("test", {"app.kubernetes.io/part-of": "kaiwo-optimizer", "app.kubernetes.io/component": "pairs"}),
        ("other", {}),
    ):
        installed.api.create(
            {
                "apiVersion": "batch/v1",
                "kind": "Job",
                "metadata": {"name": name, "namespace": SPACE, "labels": labels},
                "spec": {"template": {"spec": pod}},
            }
        )
    env = {"KUBECONFIG": str(installed.kubeconfig_for("kopt-off", SYSTEM)), "PATH": "/usr/bin:/bin"}
    done = subprocess.run(
        [*KOPT, "off", "-n", SYSTEM, "--wait", "5s", "-o", "json"], env=env, capture_output=True, text=True, check=False
    )
    steps = [one for one in json.loads(done.stdout)["steps"] if one["kind"] == "Job"]
    assert [(one["action"], one["name"], one["done"]) for one in steps] == [("delete", "test", True)], done.stderr
    assert [one["metadata"]["name"] for one in installed.api.list("batch/v1", "Job", SPACE)] == ["other"]
    installed.api.delete("batch/v1", "Job", "other", SPACE, propagationPolicy="Background")
