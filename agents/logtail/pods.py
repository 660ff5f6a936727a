"""Pods as the log agent sees them: which are training, which job each belongs to, and what may be written on it."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kopt.agents.logtail.annotator import LAST_STEP, LAST_TIME, MODEL
from kopt.cluster.client.resources import Key, Object
from kopt.cluster.objects.namespace import MODE_ANNOTATION, NamespaceSettings
from kopt.cluster.workloads.requests.gpus import FRACTION_ANNOTATIONS, MEMORY_ANNOTATIONS, devices_of
from kopt.core.decision import Mode
from kopt.policies.admission.mode import effective_mode

FOLLOW_ANNOTATION = "kaiwo.ai/checkpoint-logs"
"""``true`` follows a pod that would not be, ``false`` leaves one alone; a label of that name says the same."""
JOB_ANNOTATION = "kaiwo.ai/job"
"""The job that a pod belongs to, where its owner does not say."""

_JOB_LABELS = (
    "jobset.sigs.k8s.io/jobset-name",
    "training.kubeflow.org/job-name",
    "leaderworkerset.sigs.k8s.io/name",
    "volcano.sh/job-name",
    "ray.io/cluster",
    "batch.kubernetes.io/job-name",
    "job-name",
)
"""The outermost first: a JobSet's pods carry the names of both."""
_SERVICES = {"ReplicaSet", "ReplicationController", "DaemonSet"}
_GPU = re.compile(
    r"(nvidia|amd)\.com/(gpu|mig-.+|[sdqc]px_nps\d)(\.shared)?|gpu\.intel\.com/(i915|xe)|volcano\.sh/vgpu-number"
)
_SHARES = (*FRACTION_ANNOTATIONS, *MEMORY_ANNOTATIONS)
_ENDED = ("Succeeded", "Failed")


@dataclass(frozen=True)
class Container:
    """``restarts`` tells a container's runs apart; ``started``: it has or had one."""

    name: str
    restarts: int = 0
    started: bool = False


@dataclass(frozen=True)
class EphemeralVolumes:
    """Volumes that are gone with their pod, besides emptyDirs. ``names``: those that a CSI driver makes in line.
    ``claimed``: it also has some by claims of its own, whose volumes have other names; ``others`` are the names of the
    volumes that can be none of these."""

    names: frozenset[str] = frozenset()
    claimed: bool = False
    others: frozenset[str] = frozenset()

    def may_have(self, volume: str) -> bool:
        """Whether the volume of this name, as the kubelet has it, may be gone with the pod."""
        return volume in self.names or (self.claimed and volume not in self.others)


@dataclass(frozen=True)
class FollowedPod:
    """A pod to follow. ``label`` names it as a source: with its uid where another may come under its name."""

    key: Key
    uid: str
    job: str
    label: str
    gpus: float
    """GPUs of the job as far as this pod says: its own, times the number of nodes in torchrun's arguments."""
    mode: str
    containers: tuple[Container, ...]
    ended: bool
    wanted: bool
    """Asked for by name: followed wherever it is."""
    recorded: tuple[tuple[str, str], ...] = ()
    """Annotations by which others say what they know of its checkpoints."""
    finished: bool = False
    """None of its containers runs any more; one that only ``ended`` so far may still save."""
    ephemeral: EphemeralVolumes = EphemeralVolumes()
    claims: tuple[str, ...] = ()
    """The names of the claims that it may write into."""


def followed_pod(document: Object) -> FollowedPod | None:
    """None for pods that are not followed."""
    metadata, spec, status = document["metadata"], document["spec"], document.get("status") or {}
    labels, annotations = metadata.get("labels") or {}, metadata.get("annotations") or {}
    follow = str(annotations.get(FOLLOW_ANNOTATION, labels.get(FOLLOW_ANNOTATION, "")))
    gpus = gpus_of(spec, annotations)
    if follow == "false" or (follow != "true" and (not gpus or _owner(metadata, "kind") in _SERVICES)):
        return None
    namespace, name, uid = metadata["namespace"], metadata["name"], metadata.get("uid", "")
    return FollowedPod(
        (namespace, name),
        uid,
        job_of(metadata),
        name if metadata.get("generateName") else f"{name}@{uid[:8]}",
        gpus * _nodes(spec),
        str(annotations.get(MODE_ANNOTATION, "")),
        _containers(spec, status),
        status.get("phase") in _ENDED or "deletionTimestamp" in metadata,
        follow == "true",
        _recorded(annotations),
        status.get("phase") in _ENDED,
        _ephemeral(spec),
        claims_of(spec),
    )


def job_of(metadata: Mapping[str, Any]) -> str:
    """``namespace/name`` of the job that a pod is part of; a gang's pods have one."""
    labels, annotations = metadata.get("labels") or {}, metadata.get("annotations") or {}
    named = annotations.get(JOB_ANNOTATION) or next((labels[key] for key in _JOB_LABELS if labels.get(key)), "")
    return f"{metadata['namespace']}/{named or _owner(metadata, 'name') or metadata['name']}"


def mode_of(
    pod: FollowedPod, namespace: NamespaceSettings, default: Mode, workload_may_lower: bool | None = None
) -> Mode:
    """As for every other component; ``workload_may_lower`` as ``policies.admission.mode.effective_mode`` takes it."""
    return effective_mode(pod.mode, namespace.mode, default, workload_may_lower)


def gpus_of(spec: Mapping[str, Any], annotations: Mapping[str, Any]) -> float:
    """Devices that a pod's containers ask for together; a share by annotation counts as one of each GPU it is of."""
    requested = 0
    for container in (*(spec.get("containers") or ()), *_sidecars(spec)):
        resources = container.get("resources") or {}
        wanted = resources.get("limits") or resources.get("requests") or {}
        requested += sum(_count(amount) for name, amount in wanted.items() if _GPU.fullmatch(str(name)))
    return float(requested) or (float(devices_of(annotations)) if any(name in annotations for name in _SHARES) else 0.0)


def claims_of(spec: Mapping[str, Any]) -> tuple[str, ...]:
    """The names of the claims that a pod may write into."""
    claims = [item.get("persistentVolumeClaim") for item in spec.get("volumes") or [] if isinstance(item, Mapping)]
    writable = [claim for claim in claims if isinstance(claim, Mapping) and not claim.get("readOnly")]
    return tuple(dict.fromkeys(str(claim["claimName"]) for claim in writable if claim.get("claimName")))


def _recorded(annotations: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    # Once we have written there ourselves, they say what we know, and no more.
    if MODEL in annotations:
        return ()
    return tuple((name, str(annotations[name])) for name in (LAST_TIME, LAST_STEP) if name in annotations)


def _ephemeral(spec: Mapping[str, Any]) -> EphemeralVolumes:
    """The kubelet names folders of claims by their PersistentVolumes, and others as the pod does."""
    volumes = [item for item in spec.get("volumes") or [] if isinstance(item, Mapping)]
    claims = ("persistentVolumeClaim", "ephemeral")
    in_line = frozenset(str(item.get("name")) for item in volumes if not any(kind in item for kind in claims))
    drivers = frozenset(str(item.get("name")) for item in volumes if "csi" in item)
    return EphemeralVolumes(drivers, any("ephemeral" in item for item in volumes), in_line - drivers)


def _sidecars(spec: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [
        init_container
        for init_container in spec.get("initContainers") or []
        if init_container.get("restartPolicy") == "Always"
    ]


def _containers(spec: Mapping[str, Any], status: Mapping[str, Any]) -> tuple[Container, ...]:
    """Those that hold GPUs, else all: what a proxy beside the trainer prints tells nothing."""
    states = {container_status["name"]: container_status for container_status in status.get("containerStatuses") or []}
    every = spec.get("containers") or []
    training = [item for item in every if gpus_of({"containers": [item]}, {})] or every
    return tuple(
        Container(
            item["name"],
            int(states.get(item["name"], {}).get("restartCount", 0)),
            bool({"running", "terminated"} & (states.get(item["name"], {}).get("state") or {}).keys()),
        )
        for item in training
    )


def _nodes(spec: Mapping[str, Any]) -> int:
    for container in spec.get("containers") or []:
        for item in container.get("env") or []:
            if item.get("name") == "PET_NNODES" and (nodes := _count(item.get("value", ""))):
                return nodes
    return 1


def _owner(metadata: Mapping[str, Any], what: str) -> str:
    owners = metadata.get("ownerReferences") or []
    return next((str(owner.get(what, "")) for owner in owners if owner.get("controller")), "")


def _count(amount: Any) -> int:
    text = str(amount)
    return int(text) if text.isdecimal() and len(text) < 8 else 0
