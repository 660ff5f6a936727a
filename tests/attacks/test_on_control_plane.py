"""A tenant with rights in one namespace, on a real API server: what it may write, and what that does.

The controller believes no forged notice where the admission policy is not installed; with it nothing is forged at all.
"""

import itertools
import json
import time
from collections.abc import Callable, Iterator

import pytest
from chart import NAMESPACE, Helm, Object
from controlplane.api import Api, Refused
from controlplane.plane import ControlPlane
from controlplane.processes import wait_for
from deploy.conftest import charts
from preemption_controller.conftest import controller, plane, pods
from preemption_controller.teams import Controller, Pods, switch_off

from kopt.controllers.preemption.patches import stamp

pytestmark = [pytest.mark.cluster, pytest.mark.slow]
__all__ = ["charts", "controller", "plane", "pods"]
RBAC, NOTICE, FINALIZER = "rbac.authorization.k8s.io", "kaiwo.ai/evicting", "example.com/stays"


def tenant(plane: ControlPlane, name: str, space: str, *verbs: str) -> Api:
    """A user who may do everything with pods and Jobs of one namespace, and nothing elsewhere."""
    rules = [{"apiGroups": ["", "batch"], "resources": ["pods", "jobs"], "verbs": ["*"]}]
    rules += [{"apiGroups": ["kaiwo.ai"], "resources": ["evictions"], "verbs": list(verbs)}] if verbs else []
    plane.api.apply(
        {"apiVersion": f"{RBAC}/v1", "kind": "Role", "metadata": {"name": name, "namespace": space}, "rules": rules},
        {
            "apiVersion": f"{RBAC}/v1",
            "kind": "RoleBinding",
            "metadata": {"name": name, "namespace": space},
            "roleRef": {"apiGroup": RBAC, "kind": "Role", "name": name},
            "subjects": [{"apiGroup": RBAC, "kind": "User", "name": name}],
        },
    )
    api = Api(plane.kubeconfig_as(name))
    wait_for(lambda: api.http.get(api.path("v1", "Pod", space)).is_success, what="the tenant has its rights")
    return api


@pytest.fixture
def guarded(plane: ControlPlane, charts: Helm) -> Iterator[ControlPlane]:
    """The admission policy as the chart renders it, and nothing else of ours."""
    made = [one for one in charts.render() if one["metadata"]["name"] == "kopt-annotations"]
    assert {one["kind"] for one in made} == {"ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"}
    plane.api.apply(*made)
    yield plane
    for one in made:
        if plane.api.find(one["apiVersion"], one["kind"], one["metadata"]["name"]):
            plane.api.delete(one["apiVersion"], one["kind"], one["metadata"]["name"])


def write(api: Api, space: str, pod: str, **notes: str | None) -> None:
    found = {f"kaiwo.ai/{name.replace('_', '-')}": value for name, value in notes.items()}
    api.patch("v1", "Pod", pod, {"metadata": {"annotations": found}}, space)


def refusal(api: Api, space: str, name: str, value: str | None) -> str:
    """What the API server answers to the annotation on the pod ``mine``; empty where it is written."""
    try:
        api.patch("v1", "Pod", "mine", {"metadata": {"annotations": {name: value}}}, space)
    except Refused as error:
        return str(error)
    return ""


def a_pod(space: str, **notes: str) -> Object:
    found = {f"kaiwo.ai/{name.replace('_', '-')}": value for name, value in notes.items()}
    spec = {"containers": [{"name": "a", "image": "any"}], "schedulerName": "nobody"}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "mine", "namespace": space, "annotations": found},
        "spec": spec,
    }


def test_only_our_accounts_write_notices_and_what_the_log_agent_says(guarded: ControlPlane) -> None:
    space = guarded.api.space("guarded")
    mallory, trusted = tenant(guarded, "intruder", space), tenant(guarded, "trusted", space, "annotate")
    made = mallory.create(a_pod(space, evicting="{}", checkpoint_safe="false"))
    assert made["metadata"]["annotations"]["kaiwo.ai/evicting"] == "{}", "it is created as it is written"

    # What stands there already is no change: another value at each attempt.
    numbers = itertools.count()
    wait_for(
        lambda: f"written by Kaiwo Optimizer alone: {NOTICE};" in refusal(mallory, space, NOTICE, str(next(numbers))),
        what="the policy is in force",
    )
    for name, value in (
        ("evicting", None),
        ("checkpoint_safe", "true"),
        ("checkpoint_observed_at", stamp(4e9)),
        ("work_at_risk", "1"),
        ("save_requested", "{}"),
        ("term", "a/b/9"),
    ):
        with pytest.raises(Refused, match="alone"):
            write(mallory, space, "mine", **{name: value})
    write(mallory, space, "mine", checkpoint_state="CKPT_WRITING", last_checkpoint_time="2026-01-01T00:00:00Z")
    mallory.patch("v1", "Pod", "mine", {"metadata": {"labels": {"a": "b"}, "annotations": {"c": "d"}}}, space)
    write(trusted, space, "mine", checkpoint_safe="true")
    guarded.api.namespace(NAMESPACE)
    guarded.api.apply(
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "kopt-preemption", "namespace": NAMESPACE}}
    )
    ours = Api(guarded.kubeconfig_for("kopt-preemption", NAMESPACE))
    with pytest.raises(Refused, match="cannot patch"):
        write(ours, space, "mine", evicting="{}")
    guarded.api.apply(
        {
            "apiVersion": f"{RBAC}/v1",
            "kind": "RoleBinding",
            "metadata": {"name": "ours", "namespace": space},
            "roleRef": {"apiGroup": RBAC, "kind": "Role", "name": "intruder"},
            "subjects": [{"kind": "ServiceAccount", "name": "kopt-preemption", "namespace": NAMESPACE}],
        }
    )

    wait_for(lambda: not refusal(ours, space, NOTICE, '{"a": 1}'), what="our own account writes it")
    switch_off(guarded)

    wait_for(lambda: not refusal(mallory, space, NOTICE, None), what="kopt off has taken the policy away")


def test_a_forged_notice_stops_nobody_and_evicts_no_gang_in_a_write(
    pods: Pods, controller: Callable[..., Controller]
) -> None:
    """The tenant's pod is deleted and stays, with a notice of three pods and the label of a colleague's JobSet."""
    api, space = pods.api, pods.space
    mallory = tenant(pods.plane, "intruder", space)
    pods.run("writing", 4)
    pods.run("cheap", 4)
    pods.run("filler", 2)
    pods.run("intruder", 2)
    label = {"labels": {"jobset.sigs.k8s.io/jobset-name": "training"}}
    for one in pods.pods("writing"):
        api.patch("v1", "Pod", one["metadata"]["name"], {"metadata": label}, space)
    (own,) = [one["metadata"]["name"] for one in pods.pods("intruder")]
    try:
        notice = {
            "by": "kopt-preemption",
            "cause": "Preempted",
            "for": f"{space}/urgent",
            "at": stamp(time.time()),
            "reason": "r",
            "pods": 3,
        }
        metadata = label | {"annotations": {NOTICE: json.dumps(notice)}, "finalizers": [FINALIZER]}
        mallory.patch("v1", "Pod", own, {"metadata": metadata}, space)
        mallory.delete("v1", "Pod", own, space)
        assert "deletionTimestamp" in api.get("v1", "Pod", own, space)["metadata"]
        before = pods.uids("writing")
        controller("--mode=enforce", "--plain-pods")
        pods.note("cheap", lost=5)
        pods.note("writing", "CKPT_WRITING", safe=False)
        pods.submit("urgent", 4, "plain-high")
        wait_for(lambda: pods.pods("urgent"), what="the urgent job has its GPUs")
        assert pods.uids("writing") == before
        assert pods.pods("cheap") == []
    finally:
        api.patch("v1", "Pod", own, {"metadata": {"finalizers": None}}, space)
