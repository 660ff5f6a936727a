"""A workload's own ``kaiwo.ai/mode`` takes it out of enforcement nowhere, and lets it keep no lent GPUs.

Attacker: a tenant who may write its own workloads, without the verb ``bypass``.
"""

import asyncio
import copy
from types import SimpleNamespace
from typing import Any

import pytest
from admission.workloads import job
from lending.in_memory import World

from kopt.agents.logtail.log_paths import Pods
from kopt.agents.logtail.log_paths import PodSettings as LogPodSettings
from kopt.agents.logtail.pods import followed_pod
from kopt.agents.logtail.process import ProcessSettings, SidecarSettings, _annotate_own
from kopt.cluster.admission.review import Review
from kopt.cluster.client.resources import KUEUE_WORKLOADS, NAMESPACES, NODES
from kopt.cluster.objects.namespace import MODE_ANNOTATION, NamespaceSettings
from kopt.cluster.runtime.informer import Change, ChangeKind, Informer
from kopt.cluster.workloads.workload import NamespaceDefaults, read_workload
from kopt.controllers.admission.evaluation import FixedState, evaluate
from kopt.controllers.admission.handlers import Admissions
from kopt.controllers.admission.policy import parse_policy
from kopt.controllers.extender.decider import Decider
from kopt.controllers.extender.settings import ExtenderSettings
from kopt.controllers.preemption.kube_scheduler.state import LivePods, plain_node
from kopt.controllers.preemption.state import LiveCluster
from kopt.controllers.sizing.jobs import snapshot_of
from kopt.controllers.staging import snapshot as staging_snapshot
from kopt.controllers.staging.ports import StagingSettings
from kopt.core.decision import Mode
from kopt.core.switches import Owner
from kopt.policies.admission.mode import effective_mode
from kopt.policies.staging.pod import PodSettings

Object = dict[str, Any]
LOWERED = {"kaiwo.ai/mode": "observe"}
OWNER = Owner("jobs", "team", "train")


def refusal(rule: str = "", **metadata: Any) -> str:
    """What a tenant is told who creates a Job that no queue rule matches, in a cluster in enforce."""
    spec = {"mode": "enforce", "queues": {"onlyNamespaces": True}} | ({"workloadMode": rule} if rule else {})
    policy = parse_policy({"metadata": {"name": "default"}, "spec": spec})
    view = FixedState(policy, {"team": NamespaceDefaults()}, existing_queues=[("team", "gpus")])
    document = job("train")
    document["metadata"] |= {"namespace": "team", **metadata}
    review = Review(
        "1", "batch", "Job", "team", "train", "CREATE", dry_run=False, user="mallory", groups=(), object=document
    )
    return asyncio.run(Admissions(view).validate(review)).answer.refusal


def test_a_lowered_mode_is_admitted_without_a_queue_no_more() -> None:
    assert refusal()
    assert refusal(annotations=LOWERED)
    assert refusal("NotLower", annotations=LOWERED)
    assert not refusal("Any", annotations=LOWERED), "whoever runs the cluster may choose that"


@pytest.mark.parametrize("around", ["namespace", "policy"])
@pytest.mark.parametrize("own", ["observe", "annotate"])
def test_one_rule_says_how_far_a_mode_may_be_lowered(own: str, around: str) -> None:
    namespace, default = ("enforce", Mode.OBSERVE) if around == "namespace" else ("", Mode.ENFORCE)
    assert effective_mode(own, namespace, default) is Mode.ENFORCE
    assert effective_mode(own, namespace, default, workload_may_lower=True) is Mode(own)
    assert effective_mode("enforce", "observe", Mode.OBSERVE) is Mode.ENFORCE, "it may be raised"
    assert effective_mode("observe", "annotate", Mode.OBSERVE) is Mode.OBSERVE, "nothing is enforced there"
    assert effective_mode("observe", "annotate", Mode.OBSERVE, workload_may_lower=False) is Mode.ANNOTATE


def marked(own: str) -> Object:
    document = job("train")
    document["metadata"] |= {"namespace": "team", "annotations": {MODE_ANNOTATION: own}}
    return document


def webhook_mode(own: str, around: str) -> Mode:
    policy = parse_policy({"metadata": {"name": "default"}, "spec": {}})
    workload = read_workload(marked(own), "batch", "Job", "team", "train")
    assert workload is not None
    return evaluate(workload, FixedState(policy, {}), NamespaceDefaults(mode=around), ()).mode


def sizing_mode(own: str, around: str) -> Mode:
    return snapshot_of(marked(own), NamespaceSettings(managed=True, mode=around), Mode.OBSERVE).mode


def staging_mode(own: str, around: str) -> Mode:
    cluster: Any = SimpleNamespace(namespace=lambda _: NamespaceSettings(managed=True, mode=around))
    return staging_snapshot.mode_of(cluster, "team", own, StagingSettings(PodSettings("image")))[0]


def preemption_cluster(around: str) -> LiveCluster:
    nothing: Any = None
    cluster = LiveCluster(nothing)
    cluster._namespaces.objects["", "team"] = NamespaceSettings(managed=True, mode=around)
    return cluster


def preemption_mode(own: str, around: str) -> Mode:
    workload: Any = SimpleNamespace(key=("team", "train"), mode=own, document=marked(own))
    return Mode(preemption_cluster(around).mode(workload))


def plain_preemption_mode(own: str, around: str) -> Mode:
    nothing: Any = None
    cluster = preemption_cluster(around)
    pods = LivePods(cluster, Informer(nothing, NODES, keep=plain_node), 60.0)
    pod: Any = SimpleNamespace(key=("team", "train-0"), mode=own, whose=OWNER)
    return Mode(pods.mode(pod))


def extender_mode(own: str, around: str) -> Mode:
    nothing: Any = None
    decider = Decider(nothing, ExtenderSettings(Mode.OBSERVE), nothing, print, lambda: 0.0)
    decider.modes["team"] = around
    pod: Any = SimpleNamespace(key=("team", "train-0"), uid="1", mode=own, owner=OWNER)
    return Mode.ENFORCE if decider.acts_on(pod) else Mode.OBSERVE


def logtail_mode(own: str, around: str) -> Mode:
    annotated: list[Mode] = []
    jobs: Any = SimpleNamespace(
        set_gpus=lambda *_: None,
        follow=lambda *_: None,
        annotate=lambda *_: annotated.append(Mode.ENFORCE),
        stop_annotating=lambda *_: annotated.append(Mode.OBSERVE),
    )
    nothing: Any = None
    source: Any = SimpleNamespace(finish=lambda: None)
    pods = Pods(jobs, lambda *_: source, nothing, LogPodSettings(), nothing, lambda _: NamespaceSettings(True, around))
    container = {"name": "train", "resources": {"limits": {"amd.com/gpu": 8}}}
    metadata = {"namespace": "team", "name": "train-0", "uid": "1", "annotations": {MODE_ANNOTATION: own}}
    view = followed_pod({"metadata": metadata, "spec": {"containers": [container]}})
    assert view is not None
    pods.pod_changed(Change(ChangeKind.ADDED, view.key, None, view))
    return annotated[-1]


COMPONENTS = {
    "webhook": webhook_mode,
    "sizing": sizing_mode,
    "staging": staging_mode,
    "preemption": preemption_mode,
    "preemption without queues": plain_preemption_mode,
    "extender": extender_mode,
    "logtail": logtail_mode,
}
"""Lending is below: it asks whether a workload may be stopped."""


@pytest.mark.parametrize("component", COMPONENTS)
@pytest.mark.parametrize("own", ["observe", "nonsense", ""])
def test_no_component_lets_a_workload_out_of_enforcement(component: str, own: str) -> None:
    assert COMPONENTS[component](own, "enforce") is Mode.ENFORCE
    assert COMPONENTS[component](own, "observe") is Mode.OBSERVE


@pytest.mark.parametrize("own", ["observe", "annotate", "nonsense"])
async def test_a_pod_does_not_silence_the_sidecar_beside_its_trainer(own: str) -> None:
    async def get(*_: object) -> Object:
        return {"metadata": {"uid": "1", "annotations": {MODE_ANNOTATION: own}}}

    annotated: list[str] = []
    jobs: Any = SimpleNamespace(annotate=lambda job, *_: annotated.append(job))
    kube: Any = SimpleNamespace(get=get)
    settings = ProcessSettings("http://predictions.example")
    for may_lower, mode in ((None, Mode.ENFORCE), (False, Mode.ANNOTATE)):
        sidecar = SidecarSettings([], "team/train", "train", 8.0, None, mode, ("team", "train-0"), may_lower)
        await _annotate_own(jobs, kube, sidecar, settings)
    assert annotated == ["team/train"] * 2


def test_sizing_does_not_let_a_lowered_job_by() -> None:
    document = job("train")
    document["metadata"] |= {"namespace": "team", "annotations": LOWERED}
    for own in (LOWERED, {"kaiwo.ai/mode": "nonsense"}):
        document["metadata"]["annotations"] = own
        assert snapshot_of(document, NamespaceSettings(managed=True, mode="enforce"), Mode.OBSERVE).mode is Mode.ENFORCE


def lending(**annotations: str) -> World:
    """Eight GPUs, of which a service needs two; the others are lent to two workloads with these annotations."""
    world = World()
    world.queue()
    world.pool()
    world.demand = {"serving/chat": 2.0}
    for name in ("one", "two"):
        world.submit(name, 3)
        world.get(KUEUE_WORKLOADS, name, "team")["metadata"]["annotations"] = dict(annotations)
    world.lives(2)
    return world


def condition(world: World) -> Object:
    return next((one for one in world.status()["conditions"] if one["type"] == "BorrowersStoppable"), {})


def write(world: World, name: str, **metadata: Object) -> None:
    found = copy.deepcopy(world.get(KUEUE_WORKLOADS, name, "team"))
    for section, values in metadata.items():
        found["metadata"][section] = found["metadata"].get(section, {}) | values
    world.put(KUEUE_WORKLOADS, found)


@pytest.mark.parametrize("section", [{"annotations": LOWERED}, {"labels": {"kaiwo.ai/held": "staging"}}])
@pytest.mark.parametrize("when", ["before", "while it borrows"])
def test_lent_gpus_come_back_whatever_their_borrower_says(when: str, section: Object) -> None:
    world = lending(**(section.get("annotations", {}) if when == "before" else {}))
    assert world.runs() == {"one", "two"}
    for name in ("one", "two"):
        write(world, name, **section)
    world.demand["serving/chat"] = 8.0
    world.lives(4)
    assert (world.runs(), world.quota()) == (set(), 0)


def test_what_may_not_be_stopped_is_not_admitted_on_lent_gpus() -> None:
    """Its namespace is not managed: who waits there closes the queue, and the pool says why."""
    world = lending()
    world.end("two")
    world.put(NAMESPACES, {"metadata": {"name": "foreign"}})
    world.submit("alien", 3)
    alien = world.get(KUEUE_WORKLOADS, "alien", "team")
    world.delete(KUEUE_WORKLOADS, "alien", "team")
    alien["metadata"]["namespace"] = "foreign"
    world.put(KUEUE_WORKLOADS, alien)
    for key, one in list(world.objects.items()):
        if key[2] == "lent" and key[1] == "team":
            world.objects[key[0], "foreign", "lent"] = copy.deepcopy(one) | {
                "metadata": {**one["metadata"], "namespace": "foreign"}
            }
    world.life()
    world.kueue()
    assert world.runs() == {"one"}
    assert world.quota() == 3, "what is used, and no more"
    assert condition(world)["reason"] == "NotReclaimable"
    assert "foreign/alien" in condition(world)["message"]
    assert "kaiwo.ai/managed" in condition(world)["message"]
    world.delete(KUEUE_WORKLOADS, "alien", "foreign")
    world.submit("three", 3)
    world.lives(3)
    assert world.runs() == {"one", "three"}
    assert condition(world) == {}


def test_what_may_not_be_stopped_may_use_what_the_queue_owns() -> None:
    world = World()
    world.queue(quotas={"h100": "4"})
    world.pool()
    world.demand = {"serving/chat": 2.0}
    world.put(
        NAMESPACES,
        {
            "metadata": {
                "name": "team",
                "labels": {"kaiwo.ai/managed": "true"},
                "annotations": {"kaiwo.ai/mode": "observe"},
            }
        },
    )
    world.submit("own", 4)
    world.lives(3)
    assert world.runs() == {"own"}
    assert condition(world) == {}
    world.submit("more", 4)
    world.lives(3)
    assert world.runs() == {"own"}
    assert "its mode is observe" in condition(world)["message"]
