"""The controller of KaiwoQueues with its own account's token: it carries them out, says in their status what the engine
cannot express, is refused nothing, uses every right that it has, and cannot touch other queues."""

import json
import subprocess
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml
from chart import WITHOUT_DEFAULTS
from controlplane import build
from controlplane.api import Api, Refused, load_all
from controlplane.plane import ControlPlane
from controlplane.processes import wait_for
from replicas import KOPT

from .rights import (
    Object,
    assert_off_unless_enabled,
    assert_refused_nothing,
    assert_uses_its_rights,
    audited,
    leading,
    roles_of,
)

NAMESPACE, ACCOUNT, SPACE = "kopt-system", "kopt-queues", "queued-team"
VALUES: Object = {
    "queues": {"enabled": True, "mode": "enforce", "prune": True},
    **WITHOUT_DEFAULTS,
}
OBSERVED: Object = {**VALUES, "queues": {"enabled": True, "mode": "observe"}}
KUEUE = "kueue.x-k8s.io/v1beta2"
QUEUE, CLUSTER_QUEUE = ("kaiwo.ai/v1alpha2", "KaiwoQueue"), (KUEUE, "ClusterQueue")
KINDS = ("resourceflavors", "cohorts", "clusterqueues", "localqueues")
SELDOM = {
    ("patch", "events.k8s.io", "events"): "only for an event that is repeated for a minute",
    ("get", "kueue.x-k8s.io", "workloads"): "only while a borrower is held for another",
    ("patch", "kueue.x-k8s.io", "workloads"): "only where a conservative queue takes quota back, or queues are ordered",
    ("watch", "kueue.x-k8s.io", "workloads"): "only where another test of this control plane has installed the kind",
    ("list", "", "pods"): "only while something has waited for the grace of a conservative queue",
    ("create", "", "secrets"): "only by the first of our processes",
    ("patch", "", "pods"): "only where a borrower can be asked to save",
} | {
    ("create", "kueue.x-k8s.io", kind): "checked where an apply creates an object; the audit log calls that a patch"
    for kind in KINDS
}
SEED = """
apiVersion: kaiwo.ai/v1alpha2
kind: KaiwoQueue
metadata: {name: research-queue}
spec:
  displayName: "Research Queue"
  parentQueue: "ai-department"
  priority: 100
  resources: {gpu: {quota: 10, overQuotaWeight: 50, limit: 20}}
  fairness: {policy: "DRF", reclaimStrategy: "aggressive"}
"""


def queue(name: str, **spec: Any) -> Object:
    return {"apiVersion": QUEUE[0], "kind": QUEUE[1], "metadata": {"name": name}, "spec": spec}


def applied(api: Api, name: str) -> tuple[str, str]:
    """Status and reason of the condition, of the spec as it is now."""
    found = api.get(*QUEUE, name, "")
    status = found.get("status") or {}
    if status.get("observedGeneration") != found["metadata"]["generation"]:
        return "", ""
    (condition,) = status["conditions"]
    return condition["status"], condition["reason"]


def test_it_is_off_unless_it_is_asked_for(charts: Any) -> None:
    assert_off_unless_enabled(charts, VALUES, ACCOUNT)


@pytest.mark.parametrize("engine", ["kai", "volcano"])
def test_its_rights_are_those_over_the_queues_of_its_engine(charts: Any, engine: str) -> None:
    values = {**VALUES, "queues": {"enabled": True, "engine": engine}}
    groups = {
        group for role in roles_of(charts, values, ACCOUNT) for rule in role["rules"] for group in rule["apiGroups"]
    }
    assert "kueue.x-k8s.io" not in groups
    assert {"kai": "scheduling.run.ai", "volcano": "scheduling.volcano.sh"}[engine] in groups


def definition(plural: str) -> Object:
    """A kind of Kueue's, served in one version: there is no Kueue here to convert others. They stay in the list, as
    other tests of this control plane may have stored some."""
    bases = build.manifests("kueue") / "config" / "components" / "crd" / "bases"
    (document,) = load_all(bases / f"kueue.x-k8s.io_{plural}.yaml")
    for version in document["spec"]["versions"]:
        version["served"] = version["storage"] = version["name"] == KUEUE.partition("/")[2]
    return document


@pytest.fixture(scope="module")
def worked(control_plane: ControlPlane, charts: Any, install: Callable[..., None]) -> list[Object]:
    """The audit log of a queue that was observed, carried out, contradicted, and deleted."""
    control_plane.apply_crd(*map(definition, KINDS))
    install(VALUES)
    started, api = datetime.now(UTC), control_plane.api
    api.namespace(SPACE)
    api.create(yaml.safe_load(SEED))
    with leading(control_plane, charts, OBSERVED, ACCOUNT):
        wait_for(lambda: applied(api, "research-queue") == ("False", "OnlyObserved"), what="it is observed")
        assert api.find(*CLUSTER_QUEUE, "research-queue") is None
    with leading(control_plane, charts, VALUES, ACCOUNT):
        _carried_out(api)
    return audited(control_plane, ACCOUNT, started)


def _carried_out(api: Api) -> None:
    wait_for(lambda: applied(api, "research-queue") == ("True", "AsDeclared"), what="the seed is carried out")
    (finding,) = api.get(*QUEUE, "research-queue", "")["status"]["notExpressible"]
    assert (finding["code"], finding["path"]) == ("QUEUE_PRIORITY", "research-queue/spec.priority")
    assert api.get(*CLUSTER_QUEUE, "research-queue", "")["spec"]["cohortName"] == "ai-department"
    # One contradiction holds up all, and is gone with its cause.
    api.create(queue("ai-department", resources={"gpu": {"quota": 4}}))
    wait_for(lambda: applied(api, "research-queue") == ("False", "Contradiction"), what="its parent has too little")
    api.patch(*QUEUE, "ai-department", {"spec": {"resources": {"gpu": {"quota": 16}}}}, "")
    wait_for(lambda: applied(api, "ai-department") == ("True", "AsDeclared"), what="the department is carried out")
    assert api.get(KUEUE, "Cohort", "ai-department", "")["spec"]["resourceGroups"]
    # What others change in it by force is theirs, and said.
    theirs = {"apiVersion": KUEUE, "kind": "ClusterQueue", "metadata": {"name": "research-queue"}}
    api.apply({**theirs, "spec": {"fairSharing": {"weight": "7"}}})
    wait_for(lambda: applied(api, "research-queue") == ("False", "Refused"), what="the owner of the weight is named")
    (condition,) = api.get(*QUEUE, "research-queue", "")["status"]["conditions"]
    assert 'conflict with "tests"' in condition["message"]
    api.apply(theirs)
    api.patch(*QUEUE, "research-queue", {"spec": {"namespaces": [SPACE]}}, "")
    wait_for(lambda: applied(api, "research-queue") == ("True", "AsDeclared"), what="the weight is back")
    api.delete(*QUEUE, "research-queue", "")
    wait_for(lambda: api.find(*CLUSTER_QUEUE, "research-queue") is None, what="its ClusterQueue is gone")
    api.delete(*QUEUE, "ai-department", "")
    wait_for(lambda: api.find(KUEUE, "ResourceFlavor", "default") is None, what="nothing is left")


@pytest.mark.long
def test_it_is_refused_nothing(worked: list[Object]) -> None:
    assert_refused_nothing(worked)


@pytest.mark.long
def test_every_right_is_used_or_has_a_reason(worked: list[Object], charts: Any) -> None:
    assert_uses_its_rights(roles_of(charts, VALUES, ACCOUNT), worked, SELDOM)


@pytest.mark.long
def test_it_cannot_touch_queues_that_are_not_of_kaiwoqueues(worked: list[Object], control_plane: ControlPlane) -> None:
    theirs = {"apiVersion": KUEUE, "kind": "ClusterQueue", "metadata": {"name": "theirs"}, "spec": {}}
    control_plane.api.create(theirs)
    stolen = Api(Path(control_plane.kubeconfig_for(ACCOUNT, NAMESPACE)))
    with pytest.raises(Refused, match="only queues of KaiwoQueues"):
        stolen.patch(*CLUSTER_QUEUE, "theirs", {"spec": {"stopPolicy": "Hold"}}, "")
    with pytest.raises(Refused, match="only queues of KaiwoQueues"):
        stolen.delete(*CLUSTER_QUEUE, "theirs", "")
    control_plane.api.delete(*CLUSTER_QUEUE, "theirs", "")


@pytest.mark.long
def test_off_gives_them_back_with_its_own_account(worked: list[Object], control_plane: ControlPlane) -> None:
    api = control_plane.api
    api.create(
        {"apiVersion": KUEUE, "kind": "ClusterQueue", "metadata": {"name": "shared"}, "spec": {"stopPolicy": "Hold"}}
    )
    for name in ("shared", "ours"):
        metadata = {"name": name, "labels": {"kaiwo.ai/queue-tree": "managed"}}
        document = {
            "apiVersion": KUEUE,
            "kind": "ClusterQueue",
            "metadata": metadata,
            "spec": {"fairSharing": {"weight": "3"}},
        }
        headers = {"Content-Type": "application/apply-patch+yaml"}
        path = api.path(*CLUSTER_QUEUE, "", name)
        api.request("PATCH", path, json=document, headers=headers, params={"fieldManager": "kopt-queues"})
    kubeconfig = str(control_plane.kubeconfig_for("kopt-off", NAMESPACE))
    command = [*KOPT, "off", "--namespace", NAMESPACE, "--kubeconfig", kubeconfig, "-o", "json", "--wait", "1s"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    steps = {step["name"]: step for step in json.loads(done.stdout)["steps"] if step["kind"] == "ClusterQueue"}
    assert {name: (step["action"], step["error"]) for name, step in steps.items()} == {
        "shared": ("release", ""),
        "ours": ("delete", ""),
    }
    shared = api.get(*CLUSTER_QUEUE, "shared", "")
    assert "labels" not in shared["metadata"]
    assert shared["spec"]["stopPolicy"] == "Hold"
    assert shared["spec"].get("fairSharing", {}).get("weight") != "3"
    assert api.find(*CLUSTER_QUEUE, "ours") is None
    api.delete(*CLUSTER_QUEUE, "shared", "")
