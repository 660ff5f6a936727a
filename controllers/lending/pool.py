"""LendingPools and pods, reduced to what matters here; nothing that anybody may have written makes these raise."""

from collections.abc import Mapping
from typing import Any

from kopt.cluster.lease import TERM_ANNOTATION
from kopt.cluster.lending_pools import pool_of, status_of
from kopt.cluster.resources import Object
from kopt.cluster.saving import saving_by
from kopt.controllers.extender.asks import is_gpu
from kopt.controllers.preemption.reading import pod_view, requests_of, seconds
from kopt.controllers.reallocation.views import Pool, SeenPod
from kopt.controllers.webhook.objects import at, items, mapping, text

_GRACE_S = 30.0


def pool_view(document: Object) -> Pool:
    metadata = document["metadata"]
    metadata.pop("managedFields", None)
    spec, trouble = None, ""
    try:
        spec = pool_of(document)
    except ValueError as error:
        trouble = str(error)
    return Pool(document, metadata["name"], metadata["uid"], int(metadata.get("generation") or 0), spec, trouble,
                status_of(document))  # fmt: skip


def seen_pod(pod: Object) -> SeenPod | None:
    """None for pods that have ended, and for those without GPUs."""
    view = pod_view(pod)
    if view is None or not view.gpus:
        return None
    metadata, spec = pod["metadata"], mapping(pod, "spec")
    annotations = mapping(metadata, "annotations")
    kept = {name: metadata[name] for name in ("name", "namespace", "uid", "resourceVersion") if name in metadata}
    kept["annotations"] = {name: value for name, value in annotations.items() if name == TERM_ANNOTATION}
    grace = at(spec, "terminationGracePeriodSeconds")
    return SeenPod(
        {"metadata": kept}, view, {str(key): str(value) for key, value in mapping(metadata, "labels").items()},
        {name: value for name, value in requests_of(spec).items() if is_gpu(name)},
        text(pod, "status", "phase") == "Running", "deletionTimestamp" in metadata, bool(text(spec, "nodeName")),
        float(grace) if isinstance(grace, int) else _GRACE_S, _start_s(pod), saving_by(annotations),
    )  # fmt: skip


def _start_s(pod: Object) -> float | None:
    """A pod whose containers have started again is ready since its last start only."""
    if any(at(one, "restartCount") for _, one in items(pod, "status", "containerStatuses")):
        return None
    scheduled, ready = (_since(pod, name) for name in ("PodScheduled", "Ready"))
    return None if scheduled is None or ready is None else max(0.0, ready - scheduled)


def _since(pod: Mapping[str, Any], kind: str) -> float | None:
    for _, one in items(pod, "status", "conditions"):
        if text(one, "type") == kind and text(one, "status") == "True":
            return seconds(text(one, "lastTransitionTime"))
    return None
