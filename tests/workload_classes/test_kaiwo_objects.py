"""Kaiwo's objects: whose what it makes is, which priority it states, and what its GpuWorkloads say."""

from typing import Any

import pytest

from kopt.cluster.objects.kaiwo_workloads import read_gpu_workload
from kopt.cluster.workloads.owners import owner_of
from kopt.cluster.workloads.workload import NamespaceDefaults, read_workload, submission_of
from kopt.core.scheduling.submission import Framework
from kopt.core.switches import Owner

KAIWO = "kaiwo.silogen.ai/v1alpha1"


@pytest.mark.parametrize(("kind", "plural"), [("job", "kaiwojobs"), ("service", "kaiwoservices")])
def test_what_kaiwo_makes_belongs_to_its_object_from_whichever_end_it_is_seen(kind: str, plural: str) -> None:
    labels = {"kaiwo.silogen.ai/name": "mine", "kaiwo.silogen.ai/type": kind}
    owned = {"apiVersion": "batch/v1", "kind": "Job", "name": "other", "controller": True}
    pod = {"metadata": {"name": "p", "namespace": "team", "labels": labels, "ownerReferences": [owned]}}
    assert owner_of(pod, "pods") == Owner(plural, "team", "mine")
    itself = {"metadata": {"name": "mine", "namespace": "team"}}
    assert owner_of(itself, plural) == Owner(plural, "team", "mine")
    lone = {"metadata": {"name": "p", "namespace": "team", "labels": labels}}
    assert owner_of(lone, "pods") == Owner("pods", "team", "p"), "labels of a pod that nothing has made are its own"
    strange = {"metadata": {**pod["metadata"], "labels": {**labels, "kaiwo.silogen.ai/type": "download"}}}
    assert owner_of(strange, "pods") == Owner("jobs", "team", "other")


def test_a_kaiwo_job_states_its_priority_in_a_field_of_its_own() -> None:
    document = {"apiVersion": KAIWO, "kind": "KaiwoJob", "metadata": {"name": "w"}, "spec": {"gpus": 2}}
    document["spec"]["priorityClass"] = "high"  # type: ignore[index]
    workload = read_workload(document, "kaiwo.silogen.ai", "KaiwoJob", "team", "w")
    assert workload is not None
    assert submission_of(workload, Framework.KUEUE, NamespaceDefaults(), ()).priority_class == "high"
    assert workload.classified.traits.checkpoint


def gpu_workload(**status: Any) -> dict[str, Any]:
    reference = {"apiVersion": KAIWO, "kind": "KaiwoJob", "name": "w", "uid": "u"}
    spec = {"workloadRef": reference, "gpuResources": {"amd.com/gpu": 2, "amd.com/cpx_nps4": 4}}
    return {"metadata": {"name": "gw", "namespace": "team"}, "spec": spec, "status": status}


def test_a_gpu_workload_says_who_ends_it_and_when() -> None:
    idle = gpu_workload(phase="Idle", idleSince="2026-11-01T10:00:00Z")
    read = read_gpu_workload(idle)
    assert read is not None
    assert (read.gpus, read.workload.uid, read.was_preempted) == (6000, "u", False)
    assert read.ending == "Kaiwo, once others wait"
    idle["spec"]["preemptionPolicy"] = "Always"
    always = read_gpu_workload(idle)
    assert always is not None
    assert always.ending == "Kaiwo, soon"
    gone = read_gpu_workload(gpu_workload(phase="Preempted", preemptedAt="2026-11-01T10:20:00Z"))
    assert gone is not None
    assert gone.was_preempted


@pytest.mark.parametrize(
    "document",
    [
        {"metadata": {"name": "gw"}},
        {"metadata": {"name": "gw"}, "spec": {"workloadRef": "x", "gpuResources": []}},
        {"metadata": {"name": "gw"}, "spec": {"workloadRef": {"name": 3}}, "status": {"phase": []}},
    ],
)
def test_one_that_names_no_workload_is_left_out(document: dict[str, Any]) -> None:
    assert read_gpu_workload(document) is None


def test_times_that_are_none_are_none() -> None:
    read = read_gpu_workload(gpu_workload(phase="Preempted", preemptedAt="soon", idleSince=5))
    assert read is not None
    assert (read.preempted_at_s, read.idle_since_s, read.was_preempted) == (None, None, False)


@pytest.mark.parametrize("label", ["aim.eai.amd.com/service", "aim.eai.amd.com/service.name"])
def test_what_is_made_of_an_aim_service_belongs_to_it_from_whichever_end_it_is_seen(label: str) -> None:
    labels = {label: "chat", "serving.kserve.io/inferenceservice": "chat-4f2a", "pod-template-hash": "7f9"}

    def seen(kind: str, name: str) -> dict[str, Any]:
        owned = {"kind": kind, "name": name, "controller": True}
        return {"metadata": {"name": "x", "namespace": "team", "labels": labels, "ownerReferences": [owned]}}

    expected = Owner("aimservices", "team", "chat")
    assert owner_of(seen("AIMService", "chat"), "inferenceservices") == expected
    assert owner_of(seen("InferenceService", "chat-4f2a"), "deployments") == expected
    assert owner_of(seen("ReplicaSet", "chat-4f2a-predictor-7f9"), "pods") == expected
    assert owner_of({"metadata": {"name": "chat", "namespace": "team"}}, "aimservices") == expected
    del labels[label]
    pods = Owner("inferenceservices", "team", "chat-4f2a")
    assert owner_of(seen("ReplicaSet", "chat-4f2a-predictor-7f9"), "pods") == pods, "KServe's alone, the same way"
    itself = {"metadata": {"name": "chat-4f2a", "namespace": "team"}}
    assert owner_of(itself, "inferenceservices") == pods
