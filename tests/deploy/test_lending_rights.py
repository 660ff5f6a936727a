"""The reallocation controller with its own account's token: it lends, takes back and gives again, is refused nothing,
and uses every right that it has."""

import subprocess
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from chart import WITHOUT_DEFAULTS
from controlplane.api import Api, Refused
from controlplane.kueue import Kueue, admitted, workload_of
from controlplane.kwok import Kwok
from controlplane.plane import ControlPlane
from controlplane.processes import wait_for
from lending.endpoint import Endpoint, endpoint
from replicas import KOPT

from .rights import (
    Object,
    assert_changes_only_what_is_ours,
    assert_off_unless_enabled,
    assert_refused_nothing,
    assert_uses_its_rights,
    audited,
    leading,
    roles_of,
)

NAMESPACE, ACCOUNT, SPACE = "kopt-system", "kopt-reallocation", "lends"
VALUES = {
    "reallocation": {"enabled": True, "refresh": "1s"},
    **WITHOUT_DEFAULTS,
}
GPU = "nvidia.com/gpu"
POOL, QUEUE = ("kaiwo.ai/v1alpha1", "LendingPool"), ("kueue.x-k8s.io/v1beta1", "ClusterQueue")
WORKLOAD = ("kueue.x-k8s.io/v1beta1", "Workload")
SELDOM = {
    ("create", "", "secrets"): "only the first of our controllers makes the key of notices",
    ("get", "", "pods"): "only before a borrower is stopped whose pods run",
    ("patch", "events.k8s.io", "events"): "only for an event that is repeated for a minute",
    ("patch", "batch", "jobs"): "only for borrowers under KAI",
    ("patch", "scheduling.run.ai", "queues"): "only for borrowers under KAI",
    ("watch", "scheduling.run.ai", "queues"): "only where there is KAI",
    ("watch", "scheduling.volcano.sh", "queues"): "only where there is Volcano",
    ("patch", "scheduling.volcano.sh", "queues"): "only where there is Volcano",
    ("watch", "batch.volcano.sh", "jobs"): "only where there is Volcano",
    ("patch", "batch.volcano.sh", "jobs"): "only where there is Volcano",
    ("create", "bus.volcano.sh", "commands"): "only where there is Volcano",
}


def test_it_is_off_unless_it_is_asked_for(charts: Any) -> None:
    assert_off_unless_enabled(charts, VALUES, ACCOUNT, "reallocation")


def test_it_asks_the_endpoint_with_a_token_of_its_own(charts: Any) -> None:
    where = {"predictions": {"url": "http://kopt.example:8700"}}
    (deployment,) = [
        one
        for one in charts.render(VALUES | where)
        if (one["kind"], one["metadata"]["name"]) == ("Deployment", ACCOUNT)
    ]
    pod = deployment["spec"]["template"]["spec"]
    assert "--predictions=http://kopt.example:8700" in pod["containers"][0]["args"]
    assert "predictions-token" in {one["name"] for one in pod["volumes"]}


@pytest.mark.parametrize("wrong", [{"refresh": "often"}, {"replicas": 0}, {"mode": "enforce"}])
def test_wrong_values_are_refused(charts: Any, wrong: Object) -> None:
    with pytest.raises(AssertionError, match="specifications of the schema"):
        charts.render({"reallocation": {"enabled": True, **wrong}})


def job(name: str, selector: Object) -> Object:
    container = {"name": "train", "image": "any", "resources": {"limits": {GPU: "2"}, "requests": {"cpu": "1"}}}
    template = {
        "metadata": {"annotations": {"kaiwo.ai/saves-on-request": "true"}},
        "spec": {"restartPolicy": "Never", "containers": [container], "nodeSelector": selector},
    }
    metadata = {"name": name, "namespace": SPACE, "labels": {"kueue.x-k8s.io/queue-name": "gpus"}}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": metadata,
        "spec": {"suspend": True, "template": template},
    }


@pytest.fixture(scope="module")
def worked(
    control_plane: ControlPlane, charts: Any, install: Callable[..., None], here: tuple[Kueue, Kwok]
) -> Iterator[list[Object]]:
    """The audit log of a loan that was asked to save, taken back and given again; one is left lent."""
    install(VALUES)
    started, api, (kueue, kwok) = datetime.now(UTC), control_plane.api, here
    api.delete("coordination.k8s.io/v1", "Lease", ACCOUNT, NAMESPACE)
    api.namespace(SPACE, {"kaiwo.ai/managed": "true"})
    with endpoint() as forecasts, kwok.nodes(1, gpus=4) as nodes, kueue.queue(SPACE, {GPU: 0, "cpu": 10}) as queue:
        _story(control_plane, charts, forecasts, queue, dict(nodes.selector))
        yield audited(control_plane, ACCOUNT, started)
        api.delete("batch/v1", "Job", "train", SPACE, propagationPolicy="Background")
        api.delete(*POOL, "lends", "")
        wait_for(lambda: not api.list("v1", "Pod", SPACE), what="its pods are gone")


def _story(plane: ControlPlane, charts: Any, forecasts: Endpoint, queue: str, selector: Object) -> None:
    values = VALUES | {"predictions": {"url": forecasts.url, "auth": "none"}}
    with leading(plane, charts, values, ACCOUNT):
        made = _lend(plane, forecasts, queue, selector)
        forecasts.demand["chat"] = (300.0,) * 4
        wait_for(lambda: _asked(plane.api), what="it is asked to save")
        _note(plane.api)
        wait_for(lambda: _held(plane, made), what="it is told to go")
        wait_for(lambda: not admitted(workload_of(plane, made)), what="it has gone")
        forecasts.demand["chat"] = (100.0,) * 4
        wait_for(lambda: admitted(workload_of(plane, made)), what="it goes on")
        wait_for(lambda: plane.api.list("events.k8s.io/v1", "Event", SPACE), what="events are written")


def _lend(plane: ControlPlane, forecasts: Endpoint, queue: str, selector: Object) -> Object:
    forecasts.demand["chat"] = (100.0,) * 4
    service = {
        "name": "chat",
        "namespace": SPACE,
        "selector": {"matchLabels": {"app": "chat"}},
        "demand": "chat",
        "capacityPerGpu": 100,
    }
    spec = {
        "gpus": 4,
        "services": [service],
        "hold": "0s",
        "leadTime": "5m",
        "mode": "enforce",
        "borrowers": [{"system": "Kueue", "queue": queue}],
    }
    plane.api.apply({"apiVersion": POOL[0], "kind": POOL[1], "metadata": {"name": "lends"}, "spec": spec})
    made = plane.api.create(job("train", selector))
    wait_for(lambda: _pods(plane.api), what="it runs on lent GPUs")
    _note(plane.api, saved_s=-900)
    return made


def _pods(api: Api) -> list[Object]:
    return [one for one in api.list("v1", "Pod", SPACE) if one["status"].get("phase") == "Running"]


def _asked(api: Api) -> bool:
    return any("kaiwo.ai/save-requested" in one["metadata"].get("annotations", {}) for one in _pods(api))


def _note(api: Api, saved_s: float = 1.0) -> None:
    from lending.conftest import stamp

    annotations = {
        "kaiwo.ai/checkpoint-state": "TRAIN",
        "kaiwo.ai/checkpoint-safe": "true",
        "kaiwo.ai/work-at-risk": "1800",
        "kaiwo.ai/checkpoint-observed-at": stamp(),
        "kaiwo.ai/work-at-risk-interval": "1800-1900",
        "kaiwo.ai/checkpoint-model": "logs/7",
        "kaiwo.ai/last-checkpoint-time": stamp(saved_s),
        "kaiwo.ai/last-checkpoint-step": "500",
    }
    for pod in _pods(api):
        api.patch("v1", "Pod", pod["metadata"]["name"], {"metadata": {"annotations": annotations}}, SPACE)


def _held(plane: ControlPlane, made: Object) -> bool:
    return workload_of(plane, made)["metadata"].get("labels", {}).get("kaiwo.ai/held") == "lending"


def test_it_is_refused_nothing(worked: list[Object]) -> None:
    assert_refused_nothing(worked)


def test_every_right_is_used_or_has_a_reason(worked: list[Object], charts: Any) -> None:
    roles = roles_of(charts, VALUES, ACCOUNT)
    assert_uses_its_rights(roles, worked, SELDOM)


def test_its_account_cannot_make_or_delete_anything(worked: list[Object], control_plane: ControlPlane) -> None:
    stolen = Api(Path(control_plane.kubeconfig_for(ACCOUNT, NAMESPACE)))
    with pytest.raises(Refused, match="jobs"):
        stolen.create(job("mine", {}), dryRun="All")
    for api_version, kind in (("v1", "Pod"), ("batch/v1", "Job"), WORKLOAD):
        with pytest.raises(Refused, match="cannot delete"):
            stolen.delete(api_version, kind, "any", SPACE)
    with pytest.raises(Refused, match="lendingpools"):
        stolen.patch(*POOL, "lends", {"spec": {"gpus": 100}}, "")


def test_its_account_changes_only_what_is_ours_of_a_pod(worked: list[Object], control_plane: ControlPlane) -> None:
    assert_changes_only_what_is_ours(control_plane, ACCOUNT, NAMESPACE, gates=False)


def test_off_gives_the_quota_back(worked: list[Object], control_plane: ControlPlane) -> None:
    """With its own account's rights."""
    (queue,) = [one for one in control_plane.api.list(*QUEUE) if one["metadata"]["name"].startswith(f"{SPACE}-")]
    assert _quota(queue) > 0
    env = {"KUBECONFIG": str(control_plane.kubeconfig_for("kopt-off", NAMESPACE)), "PATH": "/usr/bin:/bin"}
    done = subprocess.run(
        [*KOPT, "off", "-n", NAMESPACE, "--wait", "5s", "-o", "json"],
        env=env,
        text=True,
        capture_output=True,
        check=False,
    )
    assert queue["metadata"]["name"] in done.stdout
    found = control_plane.api.get(*QUEUE, queue["metadata"]["name"], "")
    assert _quota(found) == 0
    assert "kaiwo.ai/held" not in found["metadata"].get("labels", {})
    assert control_plane.api.get("apps/v1", "Deployment", ACCOUNT, NAMESPACE)["spec"]["replicas"] == 0


def _quota(queue: Object) -> int:
    found = queue["spec"]["resourceGroups"][0]["flavors"][0]["resources"]
    return int(next(one["nominalQuota"] for one in found if one["name"] == GPU))
