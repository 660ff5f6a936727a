"""Whose a workload or a pod is, for percentages: the same name from every component that looks at any part of it.

By name and not by uid: what is being created has none yet, and what is submitted again under its name stays on its
side.
"""

from collections.abc import Mapping
from typing import Any

from kopt.cluster.client.resources import Object
from kopt.cluster.objects.fields import at, items, mapping, text
from kopt.cluster.objects.kaiwo_workloads import kaiwo_owner
from kopt.core.switches import Owner

_JOB_SET_LABEL = "jobset.sigs.k8s.io/jobset-name"
_JOB_SET_UID_LABEL = "jobset.sigs.k8s.io/jobset-uid"
"""Since JobSet 0.8; its Jobs have a UID each, and another after each of its restarts."""
_INFERENCE_LABEL = "serving.kserve.io/inferenceservice"
_TEMPLATE_HASH_LABEL = "pod-template-hash"
_CRON_JOB, _REPLICA_SET = "CronJob", "ReplicaSet"


def owner_of(document: Object, plural: str, namespace: str = "", name: str = "") -> Owner:
    """The owner of an object of the kind ``plural``: its controller where it has one, else itself. Where ``namespace``
    and ``name`` are given they stand for what the object does not know yet."""
    metadata = mapping(document, "metadata")
    namespace = namespace or text(metadata, "namespace")
    controller = next((item for _, item in items(metadata, "ownerReferences") if at(item, "controller") is True), None)
    labels = mapping(metadata, "labels")
    if job_set := text(labels, _JOB_SET_LABEL):
        return Owner.of("jobsets", namespace, job_set)
    if controller is not None and (kaiwo := kaiwo_owner(labels)) is not None:
        return Owner.of(kaiwo[0], namespace, kaiwo[1])
    if controller is not None and (service := text(labels, _INFERENCE_LABEL)):
        return Owner.of("inferenceservices", namespace, service)
    if controller is not None:
        return _controller(controller, namespace, labels)
    own = name or text(metadata, "name") or text(metadata, "generateName").rstrip("-")
    return Owner.of(plural, namespace, own)


def run_of(pod: Object) -> str:
    """The UID of what made a pod, so that what is submitted again under its name is another run.

    Empty where that tells no runs apart: a ReplicaSet is one of a Deployment's, and a Job one of a JobSet's.
    """
    metadata = mapping(pod, "metadata")
    labels = mapping(metadata, "labels")
    if text(labels, _JOB_SET_LABEL):
        return text(labels, _JOB_SET_UID_LABEL)
    controller = next((item for _, item in items(metadata, "ownerReferences") if at(item, "controller") is True), None)
    if controller is None:
        return text(metadata, "uid")
    return "" if text(controller, "kind") == _REPLICA_SET else text(controller, "uid")


def _controller(reference: Any, namespace: str, labels: Mapping[str, Any]) -> Owner:
    kind, name = text(reference, "kind"), text(reference, "name")
    template = text(labels, _TEMPLATE_HASH_LABEL)
    if kind == _REPLICA_SET and template and name.endswith(f"-{template}"):
        return Owner.of("deployments", namespace, name.removesuffix(f"-{template}"))
    if kind == _CRON_JOB:
        # Pods know their Job alone, whose name begins with this one.
        return Owner.of("jobs", namespace, name)
    return Owner.of(f"{kind.lower()}s", namespace, name)
