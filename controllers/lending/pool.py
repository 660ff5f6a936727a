"""LendingPools and pods, reduced to what matters here. Readers never raise for what an object can hold."""

from kopt.cluster.client.resources import Object
from kopt.cluster.holds.checkpoint_request import saving_by
from kopt.cluster.objects.conditions import since_s
from kopt.cluster.objects.custom.lending_pool import pool_of, status_of
from kopt.cluster.objects.fields import at, items, mapping, slim, text
from kopt.cluster.runtime.lease import TERM_ANNOTATION
from kopt.cluster.workloads.kueue.reading import read_gpu_pod, requests_of
from kopt.cluster.workloads.requests.pods import is_gpu
from kopt.controllers.lending.views import ObservedPod, Pool

_GRACE_S = 30.0


def read_pool(document: Object) -> Pool:
    metadata = slim(document)["metadata"]
    spec, error = None, ""
    try:
        spec = pool_of(document)
    except ValueError as invalid:
        error = str(invalid)
    return Pool(
        document,
        metadata["name"],
        metadata["uid"],
        int(metadata.get("generation") or 0),
        spec,
        error,
        status_of(document),
    )


def observed_pod(pod: Object) -> ObservedPod | None:
    """None for pods that have ended, and for those without GPUs."""
    gpu_pod = read_gpu_pod(pod)
    if gpu_pod is None or not (gpu_pod.gpus or gpu_pod.shares):
        return None
    metadata, spec = pod["metadata"], mapping(pod, "spec")
    annotations = mapping(metadata, "annotations")
    kept = {name: metadata[name] for name in ("name", "namespace", "uid", "resourceVersion") if name in metadata}
    kept["annotations"] = {name: value for name, value in annotations.items() if name == TERM_ANNOTATION}
    grace = at(spec, "terminationGracePeriodSeconds")
    return ObservedPod(
        {"metadata": kept},
        gpu_pod,
        {str(key): str(value) for key, value in mapping(metadata, "labels").items()},
        {name: value for name, value in requests_of(spec).items() if is_gpu(name)},
        text(pod, "status", "phase") == "Running",
        "deletionTimestamp" in metadata,
        bool(text(spec, "nodeName")),
        float(grace) if isinstance(grace, int) else _GRACE_S,
        _start_s(pod),
        saving_by(gpu_pod.annotations),
        {name: spec[name] for name in ("nodeSelector", "affinity", "tolerations") if name in spec},
    )


def _start_s(pod: Object) -> float | None:
    """After a restart of its containers, the readiness of a pod shows its last start only."""
    if any(at(item, "restartCount") for _, item in items(pod, "status", "containerStatuses")):
        return None
    scheduled, ready = (since_s(pod, name) for name in ("PodScheduled", "Ready"))
    return None if scheduled is None or ready is None else max(0.0, ready - scheduled)
