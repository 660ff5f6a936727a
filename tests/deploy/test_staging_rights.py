"""The staging controller with its own account's token: it stages, holds, stops and takes away, is refused nothing, uses
every right that it has, and can create no other Job than its own."""

import subprocess
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from chart import WITHOUT_DEFAULTS
from controlplane.api import Api, Refused
from controlplane.kubelet import Kubelet
from controlplane.kueue import Kueue
from controlplane.plane import ControlPlane
from controlplane.processes import wait_for
from replicas import KOPT
from staging.servers import Served, web

from kopt.cluster.holds.hold import HOLDABLE
from kopt.controllers.staging.affinity import affinity_to

from .rights import Object, assert_refused_nothing, assert_uses_its_rights, audited, leading, roles_of

NAMESPACE, ACCOUNT, SPACE, GATED = "kopt-system", "kopt-staging", "staged", "gated"
VALUES = {
    "mode": "enforce",
    "staging": {"enabled": True, "download": {"cpu": "10m"}},
    **WITHOUT_DEFAULTS,
    "logs": {"everywhere": True},
}
BATCH, DATA = ("batch/v1", "Job"), ("kaiwo.ai/v1alpha1", "StagedData")
GPU = "nvidia.com/gpu"
OTHERS = {"jobsets", "trainjobs", "pytorchjobs", "mpijobs", "rayjobs", "rayclusters"}
SELDOM = {
    ("patch", "events.k8s.io", "events"): "only for an event that is repeated for a minute",
    ("update", "kaiwo.ai", "stageddata/finalizers"): "only asked of the API server itself, for ownerReferences",
} | {
    (verb, one.group, one.plural): "only where the kind is installed"
    for one in HOLDABLE
    if one.plural in OTHERS
    for verb in ("patch", "watch")
}


def test_it_is_off_unless_it_is_asked_for(charts: Any) -> None:
    assert not [one for one in charts.render() if one["metadata"]["name"].startswith(ACCOUNT)]
    kinds = {one["kind"] for one in charts.render(VALUES) if one["metadata"]["name"].startswith(ACCOUNT)}
    assert {"Deployment", "ServiceAccount", "ClusterRole", "NetworkPolicy", "ValidatingAdmissionPolicy"} <= kinds


def job(name: str, node: Kubelet, source: str) -> Object:
    container = {
        "name": "main",
        "image": "any",
        "command": ["sleep", "600"],
        "resources": {"limits": {GPU: "1"}, "requests": {"cpu": "10m"}},
    }
    spec = {
        "containers": [container],
        "nodeSelector": node.selector,
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 0,
    }
    metadata = {
        "name": name,
        "namespace": SPACE,
        "labels": {"kueue.x-k8s.io/queue-name": "gpus"},
        "annotations": {"kaiwo.ai/stage": f"{source} -> pvc://claim/copies/{name}"},
    }
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": metadata,
        "spec": {"suspend": True, "template": {"spec": spec}},
    }


def gated_pod(api: Api, node: Kubelet, source: str) -> None:
    """A pod as the webhook leaves it."""
    spec: Object = job("serve", node, source)["spec"]["template"]["spec"]
    annotations = {
        "kaiwo.ai/stage": f"{source} -> pvc://claim/copies/train-0",
        "kaiwo.ai/held-undo": '{"gates":["kaiwo.ai/staging"]}',
    }
    labels = {"kaiwo.ai/held": "staging", "kaiwo.ai/asks-for-data": "true"}
    metadata = {"name": "serve", "namespace": SPACE, "labels": labels, "annotations": annotations}
    gates = {"schedulingGates": [{"name": "kaiwo.ai/staging"}]}
    api.create({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec | gates})


def claim(api: Api, folder: Path) -> None:
    volume = {
        "capacity": {"storage": "1Gi"},
        "accessModes": ["ReadWriteMany"],
        "hostPath": {"path": str(folder)},
        "claimRef": {"name": "claim", "namespace": SPACE},
    }
    spec = {
        "accessModes": ["ReadWriteMany"],
        "storageClassName": "",
        "volumeName": "staged",
        "resources": {"requests": {"storage": "1Gi"}},
    }
    api.apply(
        {"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": "staged"}, "spec": volume},
        {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": {"name": "claim", "namespace": SPACE},
            "spec": spec,
        },
    )


@pytest.fixture(scope="module")
def kueue_here(control_plane: ControlPlane) -> Iterator[Kueue]:
    running = Kueue(control_plane)
    yield running
    running.stop()


@pytest.fixture(scope="module")
def worked(
    control_plane: ControlPlane,
    kueue_here: Kueue,
    charts: Any,
    install: Callable[..., None],
    tmp_path_factory: pytest.TempPathFactory,
) -> list[Object]:
    """The audit log of a copy that a job waited for, and that was taken away."""
    install(VALUES)
    started, api, folder = datetime.now(UTC), control_plane.api, tmp_path_factory.mktemp("claim")
    api.namespace(SPACE, {"kaiwo.ai/managed": "true"})
    claim(api, folder)
    with (
        leading(control_plane, charts, VALUES, ACCOUNT),
        Kubelet(control_plane, "staged", {GPU: "8"}, entrypoints={"kopt-staging": KOPT}) as node,
        kueue_here.queue(SPACE, {GPU: 8, "cpu": 100}),
        web() as files,
    ):
        files.files["/a"] = Served(b"content")
        # Kueue is quicker than we are without the webhook: one of them is stopped by its Workload.
        for number in range(5):
            api.create(job(f"train-{number}", node, f"{files.url}/a"))
        for number in range(5):
            api.wait(*BATCH, f"train-{number}", lambda one: one["status"].get("ready"), SPACE, timeout_s=120)
            # One whose pod had begun by then is not stopped; its data comes all the same.
            copied = folder / "copies" / f"train-{number}" / "a"
            wait_for(lambda copied=copied: copied.read_bytes() == b"content", what=f"{copied} is there")
        gated_pod(api, node, f"{files.url}/a")
        api.wait("v1", "Pod", "serve", lambda one: one["spec"].get("nodeName"), SPACE)
        api.delete("v1", "Pod", "serve", SPACE)
        for number in range(5):
            api.delete(*BATCH, f"train-{number}", SPACE, propagationPolicy="Background")
        made = api.list(*DATA, SPACE)
        for one in made:
            api.delete(*DATA, one["metadata"]["name"], SPACE)
        wait_for(lambda: not api.list(*DATA, SPACE), what="the copies are taken away")
        assert not list((folder / "copies").rglob("a"))
        # What is not wanted any more while it runs is ended.
        slow = {"source": "https://127.0.0.1:9/nobody", "destination": {"claim": "claim", "path": "slow"}}
        api.create(
            {"apiVersion": DATA[0], "kind": DATA[1], "metadata": {"name": "slow", "namespace": SPACE}, "spec": slow}
        )
        wait_for(lambda: _phase(api, "slow") == "Staging", what="it is under way")
        api.delete(*DATA, "slow", SPACE)
        wait_for(lambda: not api.list(*DATA, SPACE), what="it is ended and gone")
        wait_for(lambda: not api.list("v1", "Pod", SPACE), what="the pods are gone")
    return audited(control_plane, ACCOUNT, started)


def _phase(api: Api, name: str) -> str:
    return str((api.get(*DATA, name, SPACE).get("status") or {}).get("phase", ""))


@pytest.mark.long
def test_it_is_refused_nothing(worked: list[Object]) -> None:
    assert_refused_nothing(worked)


@pytest.mark.long
def test_every_right_is_used_or_has_a_reason(worked: list[Object], charts: Any) -> None:
    roles = roles_of(charts, VALUES, ACCOUNT, "kopt-logs")
    assert_uses_its_rights(roles, worked, SELDOM)


@pytest.mark.long
def test_its_account_creates_no_other_job(worked: list[Object], control_plane: ControlPlane, charts: Any) -> None:
    stolen = Api(Path(control_plane.kubeconfig_for(ACCOUNT, NAMESPACE)))
    deployment = next(one for one in charts.render(VALUES) if one["kind"] == "Deployment")
    arguments = deployment["spec"]["template"]["spec"]["containers"][0]["args"]
    image = next(one for one in arguments if one.startswith("--image=")).removeprefix("--image=")

    def create(labels: Object, space: str = SPACE, image: str = image, **pod: Any) -> None:
        container = {"name": "x", "image": image, "args": ["stage"]}
        spec = {"restartPolicy": "Never", "automountServiceAccountToken": False, "containers": [container]} | pod
        stolen.create(
            {
                "apiVersion": "batch/v1",
                "kind": "Job",
                "metadata": {"name": "x", "namespace": space, "labels": labels},
                "spec": {"template": {"spec": spec}},
            },
            dryRun="All",
        )

    ours = {"kaiwo.ai/staging-of": "any"}
    create(ours)
    for message, labels, space, pod in (
        ("only staging Jobs", {}, SPACE, {}),
        ("opted in", ours, NAMESPACE, {}),
        ("image", ours, SPACE, {"image": "evil"}),
        ("token", ours, SPACE, {"automountServiceAccountToken": True}),
        ("host's", ours, SPACE, {"hostPID": True}),
        ("cache", ours, SPACE, {"volumes": [{"name": "x", "hostPath": {"path": "/etc"}}]}),
        ("cache", ours, SPACE, {"volumes": [{"name": "x", "hostPath": {"path": "/var/lib/kopt-cache/../x"}}]}),
    ):
        with pytest.raises(Refused, match=f"{message}|must not contain"):
            create(labels, space, **pod)
    for kind in ("Secret", "ConfigMap"):
        with pytest.raises(Refused):
            stolen.list("v1", kind, SPACE)


def waiting_pod(api: Api, name: str, labels: Object) -> None:
    """It waits behind our gate and behind another's."""
    image = {"image": "team/train:1", "resources": {"requests": {"cpu": "10m"}}}
    spec = {
        "schedulingGates": [{"name": "kaiwo.ai/staging"}, {"name": "kueue.x-k8s.io/admission"}],
        "containers": [{"name": "main"} | image],
        "initContainers": [{"name": "first"} | image],
    }
    api.create(
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "namespace": GATED, "labels": labels},
            "spec": spec,
        }
    )


def without(*gates: str) -> Object:
    names = ("kaiwo.ai/staging", "kueue.x-k8s.io/admission")
    return {"schedulingGates": [{"name": one} for one in names if one not in gates]}


@pytest.fixture
def gated(install: Callable[..., None], control_plane: ControlPlane) -> Iterator[Api]:
    """A pod that asks for data and one that does not, before the installed chart."""
    install(VALUES)
    api = control_plane.api
    api.namespace(GATED, {"kaiwo.ai/managed": "true"})
    waiting_pod(api, "asks", {"kaiwo.ai/asks-for-data": "true", "kaiwo.ai/held": "staging"})
    waiting_pod(api, "does-not", {})
    yield api
    for name in ("asks", "does-not"):
        api.delete("v1", "Pod", name, GATED)


def test_its_account_takes_its_own_gate_from_pods_that_ask_and_changes_nothing_else_of_pods(
    gated: Api, control_plane: ControlPlane
) -> None:
    stolen, evil = Api(Path(control_plane.kubeconfig_for(ACCOUNT, NAMESPACE))), {"image": "evil:1"}
    ours, spec = without("kaiwo.ai/staging"), gated.get("v1", "Pod", "asks", GATED)["spec"]
    refused: list[tuple[str, str, Object]] = [
        ("only pods that ask for data", "does-not", {"spec": ours}),
        ("only pods that ask for data", "does-not", {"metadata": {"labels": {"kaiwo.ai/asks-for-data": "true"}}}),
        ("no gate of others", "asks", {"spec": without("kueue.x-k8s.io/admission")}),
        ("no gate of others", "asks", {"spec": {"schedulingGates": None}}),
        ("no other image", "asks", {"spec": {"containers": [spec["containers"][0] | evil]}}),
        ("no other image", "asks", {"spec": {"initContainers": [spec["initContainers"][0] | evil]}}),
    ]

    def patch(name: str, change: Object) -> None:
        stolen.patch("v1", "Pod", name, change, GATED)

    def first_refusal() -> str:
        try:
            patch("does-not", {"spec": ours})
        except Refused as error:
            return error.message
        return gated.patch("v1", "Pod", "does-not", {"metadata": {"labels": {"x": "x"}}}, GATED)["kind"]

    wait_for(lambda: "only pods that ask" in first_refusal(), what="the fence has been read by the API server")
    for message, name, change in refused:
        with pytest.raises(Refused, match=message):
            patch(name, change)
    affinity = affinity_to(["node-a"], {})
    patch("asks", {"metadata": {"labels": {"kaiwo.ai/held": None}}, "spec": ours | {"affinity": affinity}})
    found = gated.get("v1", "Pod", "asks", GATED)
    assert found["spec"]["schedulingGates"] == [{"name": "kueue.x-k8s.io/admission"}]
    assert found["spec"]["affinity"] == affinity


def test_an_account_without_the_right_cannot_take_the_gate_and_off_can(gated: Api, control_plane: ControlPlane) -> None:
    change = {"spec": without("kaiwo.ai/staging")}
    gated.apply({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "trains", "namespace": GATED}})
    with pytest.raises(Refused, match="cannot patch resource"):
        Api(Path(control_plane.kubeconfig_for("trains", GATED))).patch("v1", "Pod", "asks", change, GATED)
    Api(Path(control_plane.kubeconfig_for("kopt-off", NAMESPACE))).patch("v1", "Pod", "asks", change, GATED)
    assert len(gated.get("v1", "Pod", "asks", GATED)["spec"]["schedulingGates"]) == 1


@pytest.mark.long
def test_off_lets_its_objects_be_deleted(worked: list[Object], control_plane: ControlPlane) -> None:
    api = control_plane.api
    api.create(
        {
            "apiVersion": DATA[0],
            "kind": DATA[1],
            "metadata": {"name": "kept", "namespace": SPACE, "finalizers": ["kaiwo.ai/staged-copies"]},
            "spec": {"source": "s3://a/b", "destination": {"claim": "claim", "path": "kept"}},
        }
    )
    env = {"KUBECONFIG": str(control_plane.kubeconfig_for("kopt-off", NAMESPACE)), "PATH": "/usr/bin:/bin"}
    subprocess.run([*KOPT, "off", "-n", NAMESPACE, "--wait", "5s"], env=env, capture_output=True, check=False)
    assert api.get("apps/v1", "Deployment", ACCOUNT, NAMESPACE)["spec"]["replicas"] == 0
    assert "finalizers" not in api.get(*DATA, "kept", SPACE)["metadata"]
    api.delete(*DATA, "kept", SPACE)
