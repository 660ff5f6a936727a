"""Jobs that hold reserved GPUs: one for each node, and one for what is idle beyond whole nodes.

Each goes through its owner's queue, so that quota and nodes are held alike. They have the lowest priority, end by
themselves with the reservation, and are deleted with it by the garbage collector, also where no controller runs.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from kopt.cluster.client.resources import (
    COMPONENT_LABEL,
    HOLDS_COMPONENT,
    KAIWO_RESERVATIONS,
    PART_OF,
    PART_OF_LABEL,
    Object,
)
from kopt.cluster.holds.hold import QUEUE_LABEL
from kopt.cluster.objects.custom.reservation import RESERVATION_LABEL
from kopt.controllers.reservations.pod_engines import NODE_POOL_LABEL, POD_ENGINES, PodEngine
from kopt.controllers.reservations.snapshot import Accepted
from kopt.controllers.reservations.views import START_ANNOTATION, HoldJob
from kopt.core.scheduling.queue_tree import DEFAULT_POOL, Engine
from kopt.core.times import stamp
from kopt.core.units import WHOLE_GPU

DEFAULT_IMAGE = "registry.k8s.io/pause:3.10"
_SAME_S = 1.0


@dataclass(frozen=True)
class HoldSettings:
    """``priority_class`` of the pods; empty: that of the cluster."""

    image: str = DEFAULT_IMAGE
    priority_class: str = ""
    engine: Engine = Engine.KUEUE


@dataclass(frozen=True)
class HoldChanges:
    """``create``: manifests. ``delete``: Jobs that are too many, of another occurrence, or over."""

    create: tuple[Object, ...] = ()
    delete: tuple[HoldJob, ...] = ()


def changes(accepted: Accepted, gpus: int, bound: frozenset[str], now_s: float, settings: HoldSettings) -> HoldChanges:
    """What holds ``gpus`` whole GPUs. ``bound``: uids of Jobs whose pods have nodes; these are kept rather."""
    each = accepted.spec.gpus_per_node
    full = min(accepted.spec.nodes, gpus // each)
    part = 0 if full == accepted.spec.nodes else gpus - full * each
    wanted = {each: full} | ({part: 1} if part else {})
    start_s, extra = accepted.occurrence.start_s, list[HoldJob]()
    for job in sorted(accepted.jobs, key=lambda job: (job.uid not in bound, job.key)):
        own = not job.is_over and job.start_s is not None and abs(job.start_s - start_s) < _SAME_S
        size = job.gpus // WHOLE_GPU
        if own and wanted.get(size, 0) > 0:
            wanted[size] -= 1
        else:
            extra.append(job)
    used = {job.key[1] for job in accepted.jobs}
    create = []
    for size, number in wanted.items():
        create += [_job(accepted, size, name, now_s, settings) for name in _names(accepted, size, used, number)]
    return HoldChanges(tuple(create), tuple(extra))


def _names(accepted: Accepted, gpus: int, used: set[str], number: int) -> Sequence[str]:
    """The first that are free: another replica would choose the same, and the API server lets one of the two."""
    stem = f"{accepted.reserved.job_prefix}{accepted.occurrence.start_s:.0f}-{gpus}"
    names = (f"{stem}-{index}" for index in range(len(used) + number))
    return [name for name in names if name not in used][:number]


def _job(accepted: Accepted, gpus: int, name: str, now_s: float, settings: HoldSettings) -> Object:
    key, until_s = accepted.reserved.key, accepted.occurrence.until_s
    labels = {PART_OF_LABEL: PART_OF, COMPONENT_LABEL: HOLDS_COMPONENT, RESERVATION_LABEL: key[1][:63].rstrip(".-")}
    # Not as its controller: Kueue looks up the controllers of Jobs, and may not read this kind.
    owner = {
        "apiVersion": f"{KAIWO_RESERVATIONS.group}/{KAIWO_RESERVATIONS.version}",
        "kind": KAIWO_RESERVATIONS.kind,
        "name": key[1],
        "uid": accepted.reserved.uid,
    }
    amounts = {accepted.resource: str(gpus)}
    container = {
        "name": "hold",
        "image": settings.image,
        "resources": {"requests": amounts, "limits": amounts},
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
    }
    pod = {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 0,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": 65532,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [container],
    }
    if accepted.spec.node_selector:
        pod["nodeSelector"] = dict(accepted.spec.node_selector)
    if settings.priority_class:
        pod["priorityClassName"] = settings.priority_class
    metadata: Object = {"labels": labels, "annotations": {START_ANNOTATION: stamp(accepted.occurrence.start_s)}}
    of_pods: Object = {"labels": labels}
    queued = POD_ENGINES.get(settings.engine)
    if queued is None:
        metadata["labels"] = labels | {QUEUE_LABEL: accepted.spec.queue}
    else:
        pod["schedulerName"] = queued.scheduler
        metadata, of_pods = (_of_queue(each, queued, accepted) for each in (metadata, of_pods))
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "namespace": key[0], **metadata, "ownerReferences": [owner]},
        "spec": {
            # Kueue starts it; the others' schedulers decide about its pods.
            "suspend": queued is None,
            "parallelism": 1,
            "completions": 1,
            "backoffLimit": 0,
            "activeDeadlineSeconds": max(1, math.ceil(until_s - now_s)),
            "ttlSecondsAfterFinished": 0,
            "template": {"metadata": of_pods, "spec": pod},
        },
    }


def _of_queue(metadata: Object, engine: PodEngine, accepted: Accepted) -> Object:
    """With its queue, and its node pool where it has one."""
    section, key = engine.reference.section, engine.reference.key
    named = {**metadata, section: {**(metadata.get(section) or {}), key: accepted.spec.queue}}
    if engine.engine is Engine.KAI and accepted.pool != DEFAULT_POOL:
        named["labels"] = {**named["labels"], NODE_POOL_LABEL: accepted.pool}
    return named
