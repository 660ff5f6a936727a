"""What a Job asks for, kept while it asks for something else, so that anybody can put it back.

    asked = request_of(job)                 before the Job is given another request
    {"spec": with_request(job, asked)}      the merge patch that gives it its own again

The API server takes it only for a suspended Job that has no pod left (1.36 or newer).
"""

import copy
from collections.abc import Mapping
from typing import Any

from kopt.cluster.client.resources import Object
from kopt.formats.gpu_shares import KAI_MEMORY

FRACTION_ANNOTATION = "kaiwo.ai/gpu-fraction"
_DEFAULT_BACKOFF_LIMIT = 6


def request_of(job: Object) -> dict[str, Any]:
    """Resources by container, the share of a GPU that the template is annotated with, and the retries."""
    containers = job["spec"]["template"]["spec"].get("containers") or []
    annotations = (job["spec"]["template"].get("metadata") or {}).get("annotations") or {}
    return {
        "resources": {container["name"]: copy.deepcopy(container.get("resources") or {}) for container in containers},
        "fraction": annotations.get(FRACTION_ANNOTATION),
        "memory": annotations.get(KAI_MEMORY),
        "backoff_limit": job["spec"].get("backoffLimit", _DEFAULT_BACKOFF_LIMIT),
    }


def with_request(job: Object, original: Mapping[str, Any]) -> Object:
    """The change of ``spec`` that makes a Job request ``original``; what cannot be read of it stays as it is."""
    containers = copy.deepcopy(job["spec"]["template"]["spec"].get("containers") or [])
    resources, limit, fraction = (original.get(name) for name in ("resources", "backoff_limit", "fraction"))
    for container in containers:
        own = resources.get(container["name"]) if isinstance(resources, dict) else None
        if isinstance(own, dict):
            container["resources"] = copy.deepcopy(own)
    annotations = {FRACTION_ANNOTATION: fraction if isinstance(fraction, str) else None}
    if "memory" in original:
        # Not in what an older version kept: that wrote no such annotation.
        annotations[KAI_MEMORY] = original["memory"] if isinstance(original["memory"], str) else None
    readable = isinstance(limit, int) and not isinstance(limit, bool) and 0 <= limit < 1 << 31
    return {
        "backoffLimit": limit if readable else job["spec"].get("backoffLimit", _DEFAULT_BACKOFF_LIMIT),
        "template": {
            "metadata": {"annotations": annotations},
            "spec": {"containers": containers},
        },
    }
