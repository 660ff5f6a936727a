"""The Job that makes a copy, or takes one away: one pod without GPUs and without a token of the cluster."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from kopt.core.staged_data import CLAIM, ClaimFolder, StagedData
from kopt.core.staging import Source, SourceKind
from kopt.policies.staging.copies import Verb
from kopt.policies.staging.decide import Order

CONTAINER = "stage"
DATA_LABEL = "kaiwo.ai/staging-of"
"""On our Jobs and pods: the uid of the StagedData."""
PLACE_ANNOTATION, VERB_LABEL = "kaiwo.ai/staging-place", "kaiwo.ai/staging-verb"
ATTEMPT_LABEL, GENERATION_LABEL = "kaiwo.ai/staging-attempt", "kaiwo.ai/staging-generation"
_RESULT = "/dev/termination-log"
_COPY = "/copy"
"""Where a download has its volume."""
_USER = 65532
_LIMITS_OF_RETRIES = 6


@dataclass(frozen=True)
class PodSettings:
    """What the administrator chooses for staging pods."""

    image: str
    cache_path: str = "/var/lib/kopt-cache"
    """On nodes; a copy lies in ``NAMESPACE/NAME`` below it."""
    cpu: str = "500m"
    memory: str = "256Mi"
    memory_limit: str = "2Gi"
    """Objects take 1.5 KiB each, so that is enough for a million."""
    priority_class: str = ""
    queue: str = ""
    """The LocalQueue for staging Jobs, where a cluster manages Jobs without one, too."""
    keep_s: int = 3600
    """What ended is kept for so long, for people."""
    labels: Mapping[str, str] = field(default_factory=dict)


def job_name(data: StagedData, order: Order) -> str:
    """One name for each attempt, whoever begins it."""
    place = hashlib.sha256(f"{data.uid}/{order.place}".encode()).hexdigest()[:10]
    return f"kopt-{order.verb.value}-{data.name[:30].rstrip('.-')}-{place}-{order.attempt}".replace(".", "-")


def staging_job(data: StagedData, order: Order, settings: PodSettings) -> dict[str, Any]:
    """The body of the Job, without its owner."""
    labels = {
        **settings.labels, DATA_LABEL: data.uid, VERB_LABEL: order.verb.value, ATTEMPT_LABEL: str(order.attempt),
        GENERATION_LABEL: str(data.generation),
    }  # fmt: skip
    notes = {PLACE_ANNOTATION: order.place}
    queue = {"kueue.x-k8s.io/queue-name": settings.queue} if settings.queue else {}
    return {
        "metadata": {"name": job_name(data, order), "namespace": data.namespace, "labels": labels | queue,
                     "annotations": notes},
        "spec": {
            "completions": 1, "parallelism": 1, "backoffLimit": _LIMITS_OF_RETRIES,
            "ttlSecondsAfterFinished": settings.keep_s, "podReplacementPolicy": "Failed",
            # What kopt itself says is final for this Job; a pod that was killed goes on where it was.
            "podFailurePolicy": {"rules": [
                {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
                {"action": "FailJob",
                 "onExitCodes": {"containerName": CONTAINER, "operator": "In", "values": [1, 2]}},
            ]},
            "template": {"metadata": {"labels": labels, "annotations": notes}, "spec": _pod(data, order, settings)},
        },
    }  # fmt: skip


def _pod(data: StagedData, order: Order, settings: PodSettings) -> dict[str, Any]:
    volumes, mounts, folder = _volumes(data, order, settings)
    limits = {"memory": settings.memory_limit}
    container: dict[str, Any] = {
        "name": CONTAINER, "image": settings.image, "args": _arguments(data, order, folder),
        "terminationMessagePath": _RESULT, "terminationMessagePolicy": "File",
        "resources": {"requests": {"cpu": settings.cpu, "memory": settings.memory}, "limits": limits},
        "securityContext": {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True,
                            "capabilities": {"drop": ["ALL"]}},
        "volumeMounts": mounts,
    }  # fmt: skip
    if data.spec.secret and order.verb is Verb.STAGE:
        container["envFrom"] = [{"secretRef": {"name": data.spec.secret}}]
    spec: dict[str, Any] = {
        "restartPolicy": "Never", "automountServiceAccountToken": False, "enableServiceLinks": False,
        "terminationGracePeriodSeconds": 20, "securityContext": _security(at_node=order.place != CLAIM),
        "containers": [container], "volumes": volumes,
    }  # fmt: skip
    if settings.priority_class:
        spec["priorityClassName"] = settings.priority_class
    if order.place != CLAIM:
        field_ = {"key": "metadata.name", "operator": "In", "values": [order.place]}
        terms = {"nodeSelectorTerms": [{"matchFields": [field_]}]}
        spec["affinity"] = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}
        # Nodes with GPUs keep others away as a rule; one that is ill is not chosen.
        spec["tolerations"] = [{"operator": "Exists", "effect": "NoSchedule"}]
    return spec


def _security(*, at_node: bool) -> dict[str, Any]:
    """A folder of a node is made by the kubelet for root; everything else is left to an account without rights."""
    profile = {"seccompProfile": {"type": "RuntimeDefault"}}
    if at_node:
        return {"runAsUser": 0, "runAsGroup": 0, **profile}
    return {"runAsNonRoot": True, "runAsUser": _USER, "runAsGroup": _USER, "fsGroup": _USER,
            "fsGroupChangePolicy": "OnRootMismatch", **profile}  # fmt: skip


def _arguments(data: StagedData, order: Order, folder: str) -> list[str]:
    if order.verb is Verb.REMOVE:
        return ["stage", "--remove", folder, "--result", _RESULT]
    spec = data.spec
    found = ["stage", spec.source, folder, "--output=json", "--result", _RESULT]
    found += ["--limit", spec.limit] if spec.limit else []
    found += ["--parallel", str(spec.parallel)] if spec.parallel else []
    found += [] if spec.check_source else ["--no-source-checksums"]
    return found + (["--sha256", spec.sha256] if spec.sha256 else [])


def as_users_know_it(text: str, data: StagedData, settings: PodSettings) -> str:
    """What a download tells, with its folder named as it is outside of its container."""
    destination = data.spec.destination
    if isinstance(destination, ClaimFolder):
        return text.replace(f"{_COPY}/{destination.path}", f"pvc://{destination.claim}/{destination.path}")
    return text.replace(_COPY, _cache_folder(data, settings))


def _cache_folder(data: StagedData, settings: PodSettings) -> str:
    return f"{settings.cache_path}/{data.namespace}/{data.name}"


def _volumes(data: StagedData, order: Order, settings: PodSettings) -> tuple[list[Any], list[Any], str]:
    """Volumes, mounts, and the folder of the copy in the container."""
    volumes: list[Any] = [{"name": "scratch", "emptyDir": {"sizeLimit": "64Mi"}}]
    mounts: list[Any] = [{"name": "scratch", "mountPath": "/tmp"}]
    destination = data.spec.destination
    if isinstance(destination, ClaimFolder):
        volumes.append({"name": "copy", "persistentVolumeClaim": {"claimName": destination.claim}})
        folder = f"{_COPY}/{destination.path}"
    else:
        place = {"path": _cache_folder(data, settings), "type": "DirectoryOrCreate"}
        volumes.append({"name": "copy", "hostPath": place})
        folder = _COPY
    mounts.append({"name": "copy", "mountPath": _COPY})
    source = Source.parse(data.spec.source)
    if source.kind is SourceKind.CLAIM and order.verb is Verb.STAGE:
        claim = source.address.partition("/")[0]
        volumes.append({"name": "source", "persistentVolumeClaim": {"claimName": claim, "readOnly": True}})
        mounts.append({"name": "source", "mountPath": f"/pvc/{claim}", "readOnly": True})
    if data.spec.secret and order.verb is Verb.STAGE:
        # That it is not there is told of the environment, in the pod's status; of a volume only in events.
        secret = {"secretName": data.spec.secret, "defaultMode": 0o440, "optional": True}
        volumes.append({"name": "secret", "secret": secret})
        mounts.append({"name": "secret", "mountPath": "/credentials", "readOnly": True})
    return volumes, mounts, folder
