"""Installed by the real helm into a real API server: accepted, restricted, upgraded, switched on again, gone."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from controlplane.api import Refused
from controlplane.plane import ControlPlane
from controlplane.processes import wait_for

CHART = Path(__file__).resolve().parents[2] / "deploy" / "chart"
EVALUATION = CHART.parent / "values" / "evaluation.yaml"
NAMESPACE = "kopt-system"
ADMISSION = "admissionregistration.k8s.io/v1"
Object = dict[str, Any]

KINDS = [
    ("v1", "ServiceAccount"),
    ("v1", "Service"),
    ("v1", "ConfigMap"),
    ("v1", "Pod"),
    ("apps/v1", "Deployment"),
    ("batch/v1", "CronJob"),
    ("policy/v1", "PodDisruptionBudget"),
    ("networking.k8s.io/v1", "NetworkPolicy"),
    ("kaiwo.ai/v1alpha1", "ConformancePolicy"),
    ("rbac.authorization.k8s.io/v1", "ClusterRole"),
    ("rbac.authorization.k8s.io/v1", "ClusterRoleBinding"),
    ("rbac.authorization.k8s.io/v1", "Role"),
    ("rbac.authorization.k8s.io/v1", "RoleBinding"),
    (ADMISSION, "MutatingWebhookConfiguration"),
    (ADMISSION, "ValidatingWebhookConfiguration"),
    (ADMISSION, "ValidatingAdmissionPolicy"),
    (ADMISSION, "ValidatingAdmissionPolicyBinding"),
    ("ray.io/v1", "RayService"),
]


@pytest.fixture
def installed(install: Callable[..., None], uninstall: Callable[[], None], everything: Object) -> Iterator[Object]:
    """Everything that the chart can install; its values."""
    install(everything)
    yield everything
    uninstall()


def pod(spec: Object) -> Object:
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "one", "namespace": NAMESPACE}, "spec": spec}


def ours(plane: ControlPlane) -> set[tuple[str, str]]:
    """Kind and name of every object that carries our label."""
    label = "app.kubernetes.io/part-of=kaiwo-optimizer"
    return {
        (kind, one["metadata"]["name"])
        for version, kind in KINDS
        for one in plane.api.list(version, kind, labels=label)
        if not one["metadata"].get("deletionTimestamp")
    }


@pytest.mark.long
def test_a_dry_run_on_the_server_changes_nothing(installed: Object, charts: Any, control_plane: ControlPlane) -> None:
    api = control_plane.api
    params = {"dryRun": "All", "fieldManager": "dry-run", "force": "true"}
    headers = {"Content-Type": "application/apply-patch+yaml"}
    for document in charts.render(installed):
        meta = document["metadata"]
        path = api.path(document["apiVersion"], document["kind"], meta.get("namespace", ""), meta["name"])
        before = api.request("GET", path).json()
        answer = api.request("PATCH", path, json=document, params=params, headers=headers).json()
        assert answer.get("spec") == before.get("spec"), path
        assert answer.get("rules") == before.get("rules"), path


def test_every_pod_is_let_into_a_restricted_namespace(
    installed: Object, control_plane: ControlPlane, charts: Any
) -> None:
    api = control_plane.api
    labels = api.get("v1", "Namespace", NAMESPACE, "")["metadata"]["labels"]
    assert labels["pod-security.kubernetes.io/enforce"] == "restricted"
    replicas = sum(one["spec"]["replicas"] for one in charts.render(installed) if one["kind"] == "Deployment")
    assert replicas >= 8
    wait_for(lambda: len(api.list("v1", "Pod", NAMESPACE)) == replicas, what="the pods of each Deployment")
    service = api.get("ray.io/v1", "RayService", "kopt-predictions", NAMESPACE)["spec"]["rayClusterConfig"]
    for group in (service["headGroupSpec"], *service["workerGroupSpecs"]):
        api.create(pod(group["template"]["spec"]), dryRun="All")
    for job in api.list("batch/v1", "CronJob", NAMESPACE):
        api.create(pod(job["spec"]["jobTemplate"]["spec"]["template"]["spec"]), dryRun="All")
    with pytest.raises(Refused, match="violates PodSecurity"):
        api.create(pod({"containers": [{"name": "main", "image": "any"}]}))


def test_the_values_for_an_evaluation_are_installed_as_they_are(
    install: Callable[..., None], uninstall: Callable[[], None], control_plane: ControlPlane
) -> None:
    api = control_plane.api
    try:
        install({}, "--values", str(EVALUATION))
        (worker,) = api.get("ray.io/v1", "RayService", "kopt-predictions", NAMESPACE)["spec"]["rayClusterConfig"][
            "workerGroupSpecs"
        ]
        assert worker["replicas"] == 1
        assert api.get("kaiwo.ai/v1alpha1", "ConformancePolicy", "default", "")["spec"]["mode"] == "observe"
        assert api.list("apps/v1", "DaemonSet", labels="app.kubernetes.io/component=topology")
    finally:
        uninstall()


def test_the_button_makes_a_pod(installed: Object, control_plane: ControlPlane) -> None:
    api = control_plane.api
    template = api.get("batch/v1", "CronJob", "kopt-off", NAMESPACE)["spec"]["jobTemplate"]
    api.create(
        {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": {"name": "off", "namespace": NAMESPACE},
            "spec": template["spec"],
        }
    )
    pods = lambda: api.list("v1", "Pod", NAMESPACE, labels="batch.kubernetes.io/job-name=off")  # noqa: E731
    (pod,) = wait_for(pods, what="the Job's pod")
    assert pod["spec"]["serviceAccountName"] == "kopt-off"
    api.delete("batch/v1", "Job", "off", NAMESPACE, propagationPolicy="Foreground")


def test_an_upgrade_keeps_what_the_webhook_wrote(
    installed: Object, install: Callable[..., None], control_plane: ControlPlane
) -> None:
    api = control_plane.api
    name, kind = "00-kaiwo-optimizer", "MutatingWebhookConfiguration"
    hook = {
        "name": "mutate.jobs.batch.webhook.kaiwo.ai",
        "failurePolicy": "Ignore",
        "sideEffects": "None",
        "admissionReviewVersions": ["v1"],
        "clientConfig": {"url": "https://127.0.0.1:1/mutate"},
        "rules": [{"apiGroups": ["batch"], "apiVersions": ["v1"], "resources": ["jobs"], "operations": ["CREATE"]}],
    }
    api.patch(ADMISSION, kind, name, {"webhooks": [hook]}, "")
    install(installed)
    assert [one["name"] for one in api.get(ADMISSION, kind, name, "")["webhooks"]] == [hook["name"]]


def test_pods_are_bound_with_everything_of_ours_installed_and_nothing_of_it_running(
    installed: Object, control_plane: ControlPlane
) -> None:
    """The fence around Bindings stands without the Lease that it compares them with."""
    api = control_plane.api
    amounts = {"cpu": "64", "memory": "512Gi", "pods": "110"}
    status = {"capacity": amounts, "allocatable": amounts, "conditions": [{"type": "Ready", "status": "True"}]}
    api.create({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "plain"}})
    api.patch("v1", "Node", "plain", {"status": status}, "", "status")
    space = api.space("bystanders", {"kaiwo.ai/managed": "true"})
    assert api.find("coordination.k8s.io/v1", "Lease", "kopt-extender", NAMESPACE) is None
    for number in range(5):
        one = pod({"containers": [{"name": "main", "image": "any"}]})
        one["metadata"] = {"name": f"p{number}", "namespace": space}
        api.create(one)
        found = api.wait("v1", "Pod", f"p{number}", lambda pod: pod["spec"].get("nodeName"), space)
        assert not [one for one in found["status"].get("conditions", []) if one["status"] == "False"]
    api.delete("v1", "Node", "plain", "")


def test_nothing_of_ours_is_left_after_uninstalling(
    installed: Object, charts: Any, control_plane: ControlPlane
) -> None:
    assert {("Deployment", "kopt-webhook"), ("ConformancePolicy", "default")} <= ours(control_plane)
    done = charts.run("uninstall", "kopt", "--namespace", NAMESPACE, "--kubeconfig", control_plane.kubeconfig)
    assert done.returncode == 0, done.stderr
    wait_for(lambda: not ours(control_plane), what="everything is gone")


def test_a_policy_that_would_refuse_everything_is_not_installed(
    install: Callable[..., None], charts: Any, control_plane: ControlPlane
) -> None:
    done = charts.run(
        "upgrade",
        "--install",
        "kopt",
        CHART,
        "--namespace",
        NAMESPACE,
        "--kubeconfig",
        control_plane.kubeconfig,
        values={"mode": "enforce"},
    )
    assert done.returncode != 0
    assert "mode enforce without any queue rule would refuse every workload" in done.stderr
    charts.run("uninstall", "kopt", "--namespace", NAMESPACE, "--kubeconfig", control_plane.kubeconfig)
