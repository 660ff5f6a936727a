"""The Job that makes or removes a copy: one pod without GPUs and without a service account token."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from kopt.core.staging.manifest import Source, SourceKind
from kopt.core.staging.staged_data import CLAIM, ClaimFolder, StagedData
from kopt.policies.staging.copies import Verb
from kopt.policies.staging.decide import Order

CONTAINER = "stage"
DATA_LABEL = "kaiwo.ai/staging-of"
"""On our Jobs and pods: the uid of the StagedData."""
LOCATION_ANNOTATION, VERB_LABEL = "kaiwo.ai/staging-place", "kaiwo.ai/staging-verb"
ATTEMPT_LABEL, GENERATION_LABEL = "kaiwo.ai/staging-attempt", "kaiwo.ai/staging-generation"
_RESULT = "/dev/termination-log"
_COPY = "/copy"
"""Where a download mounts its volume."""
_USER = 65532
_LIMITS_OF_RETRIES = 6


@dataclass(frozen=True)
class PodSettings:
    """The administrator's settings for staging pods."""

    image: str
    cache_path: str = "/var/lib/kopt-cache"
    """On nodes; a copy is in ``NAMESPACE/NAME`` below it."""
    cpu: str = "500m"
    memory: str = "256Mi"
    memory_limit: str = "2Gi"
    """Objects take 1.5 KiB each, so that is enough for a million."""
    priority_class: str = ""
    queue: str = ""
    """The LocalQueue for staging Jobs, where a cluster manages Jobs without one, too."""
    keep_s: int = 3600
    """Finished Jobs are kept this long for inspection."""
    labels: Mapping[str, str] = field(default_factory=dict)


def job_name(data: StagedData, order: Order) -> str:
    """One name for each attempt, so that two replicas cannot start it twice."""
    digest = hashlib.sha256(f"{data.uid}/{order.location}".encode()).hexdigest()[:10]
    return f"kopt-{order.verb.value}-{data.name[:30].rstrip('.-')}-{digest}-{order.attempt}".replace(".", "-")


def staging_job(data: StagedData, order: Order, settings: PodSettings) -> dict[str, Any]:
    """The body of the Job, without its owner."""
    labels = {
        **settings.labels,
        DATA_LABEL: data.uid,
        VERB_LABEL: order.verb.value,
        ATTEMPT_LABEL: str(order.attempt),
        GENERATION_LABEL: str(data.generation),
    }
    annotations = {LOCATION_ANNOTATION: order.location}
    queue = {"kueue.x-k8s.io/queue-name": settings.queue} if settings.queue else {}
    return {
        "metadata": {
            "name": job_name(data, order),
            "namespace": data.namespace,
            "labels": labels | queue,
            "annotations": annotations,
        },
        "spec": {
            "completions": 1,
            "parallelism": 1,
            "backoffLimit": _LIMITS_OF_RETRIES,
            "ttlSecondsAfterFinished": settings.keep_s,
            "podReplacementPolicy": "Failed",
            # kopt's own exit codes are final for this Job; a replacement of a killed pod resumes.
            "podFailurePolicy": {
                "rules": [
                    {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
                    {
                        "action": "FailJob",
                        "onExitCodes": {"containerName": CONTAINER, "operator": "In", "values": [1, 2]},
                    },
                ]
            },
            "template": {
                "metadata": {"labels": labels, "annotations": annotations},
                "spec": _pod(data, order, settings),
            },
        },
    }


def _pod(data: StagedData, order: Order, settings: PodSettings) -> dict[str, Any]:
    volumes, mounts, folder = _volumes(data, order, settings)
    limits = {"memory": settings.memory_limit}
    container: dict[str, Any] = {
        "name": CONTAINER,
        "image": settings.image,
        "args": _arguments(data, order, folder),
        "terminationMessagePath": _RESULT,
        "terminationMessagePolicy": "File",
        "resources": {"requests": {"cpu": settings.cpu, "memory": settings.memory}, "limits": limits},
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
        "volumeMounts": mounts,
    }
    if data.spec.secret and order.verb is Verb.STAGE:
        container["envFrom"] = [{"secretRef": {"name": data.spec.secret}}]
    spec: dict[str, Any] = {
        "restartPolicy": "Never",
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": 20,
        "securityContext": _security(at_node=order.location != CLAIM),
        "containers": [container],
        "volumes": volumes,
    }
    if settings.priority_class:
        spec["priorityClassName"] = settings.priority_class
    if order.location != CLAIM:
        field_ = {"key": "metadata.name", "operator": "In", "values": [order.location]}
        terms = {"nodeSelectorTerms": [{"matchFields": [field_]}]}
        spec["affinity"] = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}
        # GPU nodes usually have taints; unhealthy nodes are not chosen in the first place.
        spec["tolerations"] = [{"operator": "Exists", "effect": "NoSchedule"}]
    return spec


def _security(*, at_node: bool) -> dict[str, Any]:
    """The kubelet creates host folders for root; everything else runs as an unprivileged user."""
    profile = {"seccompProfile": {"type": "RuntimeDefault"}}
    if at_node:
        return {"runAsUser": 0, "runAsGroup": 0, **profile}
    return {
        "runAsNonRoot": True,
        "runAsUser": _USER,
        "runAsGroup": _USER,
        "fsGroup": _USER,
        "fsGroupChangePolicy": "OnRootMismatch",
        **profile,
    }


def _arguments(data: StagedData, order: Order, folder: str) -> list[str]:
    if order.verb is Verb.REMOVE:
        return ["stage", "--remove", folder, "--result", _RESULT]
    spec = data.spec
    result = ["stage", spec.source, folder, "--output=json", "--result", _RESULT]
    result += ["--limit", spec.limit] if spec.limit else []
    result += ["--parallel", str(spec.parallel)] if spec.parallel else []
    result += [] if spec.check_source else ["--no-source-checksums"]
    return result + (["--sha256", spec.sha256] if spec.sha256 else [])


def as_users_know_it(text: str, data: StagedData, settings: PodSettings) -> str:
    """A download's message, with the path of its folder as it is outside of the container."""
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
        host_path = {"path": _cache_folder(data, settings), "type": "DirectoryOrCreate"}
        volumes.append({"name": "copy", "hostPath": host_path})
        folder = _COPY
    mounts.append({"name": "copy", "mountPath": _COPY})
    source = Source.parse(data.spec.source)
    if source.kind is SourceKind.CLAIM and order.verb is Verb.STAGE:
        claim = source.address.partition("/")[0]
        volumes.append({"name": "source", "persistentVolumeClaim": {"claimName": claim, "readOnly": True}})
        mounts.append({"name": "source", "mountPath": f"/pvc/{claim}", "readOnly": True})
    if data.spec.secret and order.verb is Verb.STAGE:
        # A missing Secret in the environment shows in the pod's status; in a volume it shows only in events.
        secret = {"secretName": data.spec.secret, "defaultMode": 0o440, "optional": True}
        volumes.append({"name": "secret", "secret": secret})
        mounts.append({"name": "secret", "mountPath": "/credentials", "readOnly": True})
    return volumes, mounts, folder
