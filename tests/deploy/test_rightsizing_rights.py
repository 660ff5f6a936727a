"""The rightsizing controller with its own account's token: it resizes the pod of a Job, takes that back, and is refused
nothing; whoever has its token can do nothing else to a pod, and `kopt off` takes back what is open."""

import asyncio
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from chart import WITHOUT_DEFAULTS
from controlplane.api import Api, Refused
from controlplane.kueue import Kueue
from controlplane.kwok import Kwok
from controlplane.plane import ControlPlane
from controlplane.processes import wait_for
from prometheus_server import RunningPrometheus

from kopt.cluster.client.api import connect
from kopt.cluster.objects.resize_history import RESIZES, RESIZING
from kopt.cluster.teardown.resizes import undo_resizes
from kopt.cluster.teardown.steps import Outcome
from kopt.core.times import stamp
from kopt.core.units import MIB

from .rights import Object, assert_off_unless_enabled, assert_refused_nothing, assert_uses_its_rights, audited, leading
from .rights import roles_of as roles

ACCOUNT, GPU = "kopt-rightsizing", "nvidia.com/gpu"
VALUES = {
    "rightsizing": {"enabled": True, "mode": "enforce", "look": "1s", "prometheus": {"url": ""}},
    **WITHOUT_DEFAULTS,
}
BEFORE = {"cpu": "8", "memory": "1Gi"}
OTHER_KINDS = {
    "apps": ("deployments", "replicasets", "statefulsets"),
    "batch": ("cronjobs",),
    "batch.volcano.sh": ("jobs",),
    "jobset.x-k8s.io": ("jobsets",),
    "kaiwo.silogen.ai": ("kaiwojobs", "kaiwoservices"),
    "kubeflow.org": ("mpijobs", "pytorchjobs"),
    "leaderworkerset.x-k8s.io": ("leaderworkersets",),
    "ray.io": ("rayclusters", "rayjobs", "rayservices"),
    "serving.kserve.io": ("inferenceservices",),
    "trainer.kubeflow.org": ("trainjobs",),
}
SELDOM = {
    ("patch", "events.k8s.io", "events"): "only for an event that is repeated for a minute",
    ("create", "", "secrets"): "only by the first of our processes",
    ("watch", "kaiwo.silogen.ai", "gpuworkloads"): "only in a cluster with Kaiwo",
} | {("get", group, kind): "only for a pod of one" for group, kinds in OTHER_KINDS.items() for kind in kinds}


def test_it_is_off_unless_it_is_asked_for(charts: Any) -> None:
    assert_off_unless_enabled(charts, VALUES, ACCOUNT)


@pytest.fixture
def prometheus(tmp_path: Path) -> Iterator[Callable[[str, str], str]]:
    """A Prometheus that has measured a container for three hours: where it is."""
    running: list[RunningPrometheus] = []

    def start(space: str, pod: str) -> str:
        now_s = int(time.time())
        labels = f'namespace="{space}",pod="{pod}",container="main"'
        times = range(now_s - 3 * 3600, now_s + 1, 60)
        lines = ["# TYPE container_cpu_usage_seconds counter"]
        lines += [f"container_cpu_usage_seconds_total{{{labels}}} {at - times[0]} {at}" for at in times]
        lines += ["# TYPE container_memory_working_set_bytes gauge"]
        lines += [f"container_memory_working_set_bytes{{{labels}}} {900 * MIB} {at}" for at in times]
        running.append(RunningPrometheus(tmp_path, "\n".join([*lines, "# EOF", ""])))
        return running[0].url

    yield start
    for server in running:
        server.stop()


@pytest.mark.cluster
@pytest.mark.services
@pytest.mark.long
def test_it_is_refused_nothing_and_uses_its_rights(
    control_plane: ControlPlane,
    charts: Any,
    install: Callable[..., None],
    here: tuple[Kueue, Kwok],
    prometheus: Callable[[str, str], str],
) -> None:
    install(VALUES)
    started, api, (_, kwok) = datetime.now(UTC), control_plane.api, here
    space = api.space("rightsizing-rights", {"kaiwo.ai/managed": "true"})
    with kwok.nodes(1, gpus=4) as nodes:
        api.create(_job(space, dict(nodes.selector)))
        (pod,) = wait_for(lambda: _running(api, space), what="its pod runs") or []
        name = pod["metadata"]["name"]
        url = prometheus(space, name)
        with leading(control_plane, charts, VALUES, ACCOUNT, options=[f"--prometheus={url}"]) as server:
            _can_resize(api, space, name)
            _report_steps(api, space, name)
            server.wait_until(lambda: _cpu(api, space, name) == "4", what="it is resized")
            # The API server has what the controller asks for; no node of these is a machine whose kubelet would do it.
            api.patch("batch/v1", "Job", "trains", {"metadata": {"annotations": {"kaiwo.ai/opt-out": "true"}}}, space)
            server.wait_until(lambda: _is_closed(api, space, name), what="it is taken back")
            assert _cpu(api, space, name) == "8"
        seen = audited(control_plane, ACCOUNT, started)
        _does_nothing_else(control_plane, space, name)
        _is_taken_back_by_off(control_plane, space, name)
    assert_refused_nothing(seen)
    assert_uses_its_rights(roles(charts, VALUES, ACCOUNT), seen, SELDOM)


def _job(space: str, selector: dict[str, str]) -> Object:
    resources = {"requests": BEFORE | {GPU: "1"}, "limits": {GPU: "1"}}
    container = {"name": "main", "image": "team/train:1", "resources": resources}
    spec = {"restartPolicy": "Never", "nodeSelector": selector, "containers": [container]}
    spec["automountServiceAccountToken"] = False
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": "trains", "namespace": space},
        "spec": {"template": {"spec": spec}},
    }


def _running(api: Api, space: str) -> list[Object]:
    return [pod for pod in api.list("v1", "Pod", space) if pod["status"].get("phase") == "Running"]


def _cpu(api: Api, space: str, name: str) -> str:
    resources = api.get("v1", "Pod", name, space)["spec"]["containers"][0]["resources"]
    return str(resources["requests"]["cpu"])


def _is_closed(api: Api, space: str, name: str) -> bool:
    metadata = api.get("v1", "Pod", name, space)["metadata"]
    return RESIZES in metadata["annotations"] and RESIZING not in metadata.get("labels", {})


def _can_resize(api: Api, space: str, name: str) -> None:
    """By a pod's status the API server knows whether its kubelet resizes: then it says what containers have."""
    statuses = api.get("v1", "Pod", name, space)["status"]["containerStatuses"]
    statuses[0]["resources"] = {"requests": BEFORE | {GPU: "1"}, "limits": {GPU: "1"}}
    api.patch("v1", "Pod", name, {"status": {"containerStatuses": statuses}}, space, subresource="status")


def _report_steps(api: Api, space: str, name: str) -> None:
    """What a log agent would have written in twenty minutes."""
    now_s = time.time()
    for minute in range(21):
        notes = {
            "kaiwo.ai/progress": f"{30 * minute}/100000",
            "kaiwo.ai/progress-at": stamp(now_s - 60 * (20 - minute)),
            "kaiwo.ai/step-seconds": "2",
        }
        api.patch("v1", "Pod", name, {"metadata": {"annotations": notes}}, space)


def _does_nothing_else(plane: ControlPlane, space: str, name: str) -> None:
    """Whoever has its token."""
    stolen = Api(Path(plane.kubeconfig_for(ACCOUNT, "kopt-system")))
    resize = _changed(plane.api, space, name, cpu="2")
    with pytest.raises(Refused, match="only of a pod on which the change is recorded"):
        stolen.patch("v1", "Pod", name, resize, space, subresource="resize")
    for changes in (
        {"spec": {"activeDeadlineSeconds": 1}},
        {"metadata": {"labels": {"app": "evil"}}},
        {"metadata": {"annotations": {"evil": "1"}}},
        _changed(plane.api, space, name, image="evil"),
    ):
        with pytest.raises(Refused, match=f"{ACCOUNT}-pods"):
            stolen.patch("v1", "Pod", name, changes, space)
    marked = {"metadata": {"labels": {RESIZING: "open"}}}
    stolen.patch("v1", "Pod", name, marked, space)
    plane.api.patch("v1", "Namespace", space, {"metadata": {"labels": {"kaiwo.ai/managed": None}}})
    # The API server's own view of a namespace is a moment old.
    wait_for(lambda: "opted in" in _refusal(stolen, space, name, resize), what="it is refused where nobody opted in")
    plane.api.patch("v1", "Namespace", space, {"metadata": {"labels": {"kaiwo.ai/managed": "true"}}})
    wait_for(lambda: not _refusal(stolen, space, name, resize), what="it is let through again")
    stolen.http.close()


def _changed(api: Api, space: str, name: str, cpu: str = "", **more: str) -> Object:
    """A merge patch of its container: with all that this has already, as it replaces the list."""
    (container,) = api.get("v1", "Pod", name, space)["spec"]["containers"]
    if cpu:
        container["resources"]["requests"]["cpu"] = cpu
    return {"spec": {"containers": [container | more]}}


def _refusal(api: Api, space: str, name: str, changes: Object) -> str:
    try:
        api.patch("v1", "Pod", name, changes, space, subresource="resize")
    except Refused as refused:
        return refused.message
    return ""


def _is_taken_back_by_off(plane: ControlPlane, space: str, name: str) -> None:
    """With its own account: what stands on the pod is taken back, and no pod is resized on which nothing is open."""
    api = plane.api
    entry = f'{{"at":"{stamp(time.time())}","container":"main","resource":"cpu","before":{{"request":4000}},'
    entry += '"after":{"request":2000},"outcome":"open"}'
    open_ = {"metadata": {"labels": {RESIZING: "open"}, "annotations": {RESIZES: f"[{entry}]"}}}
    api.patch("v1", "Pod", name, open_, space)
    assert _cpu(api, space, name) == "2"

    async def undone() -> list[Outcome]:
        async with connect(Path(plane.kubeconfig_for("kopt-off", "kopt-system"))) as kube:
            return [outcome async for outcome in undo_resizes(kube, False)]

    outcomes = asyncio.run(undone())
    assert [(each.step.name, each.error) for each in outcomes] == [(name, "")]
    assert (_cpu(api, space, name), _is_closed(api, space, name)) == ("4", True)
    off = Api(Path(plane.kubeconfig_for("kopt-off", "kopt-system")))
    assert "only of a pod on which the change is recorded" in _refusal(
        off, space, name, _changed(api, space, name, cpu="8")
    )
    off.http.close()
