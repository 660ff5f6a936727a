"""The control plane of the tests is a real one: RBAC, admission, audit, tokens, restarts, controllers."""

import base64
import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from controlplane.api import Api, Refused
from controlplane.borrowed import BorrowedCluster
from controlplane.plane import ControlPlane
from controlplane.processes import wait_for

HERE = Path(__file__).resolve().parent


def test_a_service_account_has_its_own_rights_and_no_more(control_plane: ControlPlane) -> None:
    api = control_plane.api
    space = api.space("rights")
    meta = {"name": "reader", "namespace": space}
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "reader"}
    api.apply(
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": meta},
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "Role",
            "metadata": meta,
            "rules": [{"apiGroups": [""], "resources": ["configmaps"], "verbs": ["list"]}],
        },
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "RoleBinding",
            "metadata": meta,
            "roleRef": role,
            "subjects": [{"kind": "ServiceAccount", "name": "reader", "namespace": space}],
        },
    )
    account = Api(control_plane.kubeconfig_for("reader", space))
    assert [one["metadata"]["name"] for one in account.list("v1", "ConfigMap", space)] == ["kube-root-ca.crt"]
    with pytest.raises(
        Refused, match=rf"system:serviceaccount:{space}:reader.*cannot list resource .secrets"
    ) as refused:
        account.list("v1", "Secret", space)
    assert refused.value.status == 403


def test_pod_security_is_enforced(control_plane: ControlPlane) -> None:
    space = control_plane.api.space("restricted", {"pod-security.kubernetes.io/enforce": "restricted"})
    pod = {"containers": [{"name": "main", "image": "any", "securityContext": {"privileged": True}}]}
    with pytest.raises(Refused, match="violates PodSecurity"):
        control_plane.api.create(
            {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "namespace": space}, "spec": pod}
        )


def test_the_audit_log_names_who_wrote_what(control_plane: ControlPlane) -> None:
    person = Api(control_plane.kubeconfig_as("mallory", ["curious"]))
    with pytest.raises(Refused):
        person.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "hers"}})

    def created() -> list[dict[str, Any]]:
        entries = control_plane.audit_entries("mallory")
        return [entry for entry in entries if entry["user"]["username"] == "mallory" and entry["verb"] == "create"]

    hers = wait_for(created)
    assert "curious" in hers[0]["user"]["groups"]
    assert hers[0]["responseStatus"]["code"] == 403


@pytest.mark.long
@pytest.mark.slow
def test_restarts_keep_the_objects_and_compaction_forgets_old_revisions(
    fresh_control_plane: Callable[..., ControlPlane],
) -> None:
    plane = fresh_control_plane()
    space = plane.api.space("kept")
    # The controller manager puts one into every namespace, when it gets to it.
    root = plane.api.wait("v1", "ConfigMap", "kube-root-ca.crt", lambda one: one["data"], space)
    old = root["metadata"]["resourceVersion"]
    for number in range(3):
        meta = {"name": f"c{number}", "namespace": space}
        plane.api.create({"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta})
    path = plane.api.path("v1", "ConfigMap", space)
    exact = {"resourceVersion": old, "resourceVersionMatch": "Exact"}
    plane.restart_api_server()
    assert len(plane.api.request("GET", path, params=exact).json()["items"]) == 1
    plane.restart_api_server(compact=True)
    assert plane.api.http.get(path, params=exact).status_code == 410
    assert {"c0", "c1", "c2"} <= {one["metadata"]["name"] for one in plane.api.list("v1", "ConfigMap", space)}
    params = {"watch": "true", "resourceVersion": old, "timeoutSeconds": "2"}
    with plane.api.http.stream("GET", path, params=params) as answer:
        first = json.loads(next(answer.iter_lines()))
    assert first["object"]["code"] == 410


@pytest.mark.long
@pytest.mark.slow
def test_custom_resources_of_the_usual_projects_can_be_installed(control_plane: ControlPlane) -> None:
    control_plane.install_crds("jobset", "lws", "kuberay", "training-operator", "trainer")
    definitions = control_plane.api.list("apiextensions.k8s.io/v1", "CustomResourceDefinition")
    kinds = {one["spec"]["names"]["kind"] for one in definitions}
    assert {"JobSet", "LeaderWorkerSet", "RayJob", "RayCluster", "RayService"} <= kinds
    assert {"PyTorchJob", "MPIJob", "TrainJob"} <= kinds
    job = {"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "metadata": {"name": "j", "namespace": "default"}}
    with pytest.raises(Refused, match="pytorchReplicaSpecs"):
        control_plane.api.create({**job, "spec": {}})


def test_small_stand_ins_exist_where_the_definitions_cannot_be_had(control_plane: ControlPlane) -> None:
    control_plane.install_crds("kserve", "kaiwo")
    meta = {"name": "llm", "namespace": control_plane.api.space("stand-ins")}
    predictor = {"containers": [{"name": "a", "resources": {"limits": {"amd.com/gpu": "1"}}}]}
    for version, kind, spec in (
        ("serving.kserve.io/v1beta1", "InferenceService", {"predictor": predictor}),
        ("kaiwo.silogen.ai/v1alpha1", "KaiwoJob", {"gpus": 4, "job": {"spec": {"parallelism": 2}}}),
    ):
        stored = control_plane.api.create({"apiVersion": version, "kind": kind, "metadata": meta, "spec": spec})
        assert spec.items() <= stored["spec"].items()


def test_a_borrowed_cluster_serves_what_any_can_and_skips_the_rest(control_plane: ControlPlane, tmp_path: Path) -> None:
    document = yaml.safe_load(control_plane.kubeconfig.read_text())
    for settings in (document["clusters"][0]["cluster"], document["users"][0]["user"]):
        for key in [key for key in settings if Path(str(settings[key])).is_file()]:
            settings[f"{key}-data"] = base64.b64encode(Path(settings.pop(key)).read_bytes()).decode()
    (tmp_path / "config").write_text(yaml.safe_dump(document))
    borrowed = BorrowedCluster(tmp_path / "config", tmp_path)
    assert borrowed.api.get("v1", "Namespace", "default")["metadata"]["name"] == "default"
    assert borrowed.kubeconfig_for("default", "default").exists()
    with pytest.raises(pytest.skip.Exception, match="KOPT_TEST_KUBECONFIG"):
        borrowed.restart_api_server()


@pytest.mark.long
def test_a_second_scheduler_can_be_configured(control_plane: ControlPlane) -> None:
    config = {"profiles": [{"schedulerName": "mine"}]}
    scheduler = control_plane.start_scheduler(config)
    container = {"name": "main", "image": "any", "resources": {"limits": {"example.com/none": "1"}}}
    meta = {"name": "p", "namespace": control_plane.api.space("second-scheduler")}
    spec = {"schedulerName": "mine", "containers": [container]}
    control_plane.api.create({"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec})
    # It tried: it says why the pod cannot be placed.
    control_plane.api.wait("v1", "Pod", "p", lambda pod: pod["status"].get("conditions"), meta["namespace"])
    scheduler.stop()


def test_nothing_outlives_a_killed_test_process(tmp_path: Path) -> None:
    program = (
        f"import sys, threading; sys.path.insert(0, {str(HERE.parent)!r})\n"
        "from pathlib import Path\n"
        "from controlplane.processes import Server\n"
        f"started = []\n"
        f"def start(): started.append(Server('sleep', ['sleep', '600'], Path({str(tmp_path)!r})).pid)\n"
        "thread = threading.Thread(target=start); thread.start(); thread.join()\n"
        "print(started[0], flush=True); threading.Event().wait()\n"
    )
    parent = subprocess.Popen([sys.executable, "-P", "-c", program], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    time.sleep(0.3)
    assert lives(child), "the child died with the thread that started it"
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    wait_for(lambda: not lives(child), what="the child dies with its parent")


def lives(pid: int) -> bool:
    """Whether the process exists and is no zombie."""
    try:
        return "Z (zombie)" not in Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
