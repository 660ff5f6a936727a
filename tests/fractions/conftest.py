"""The webhooks before a cluster with GPUs that several executors hand out shares of."""

import contextlib
import itertools
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from admission.conftest import Webhooks, running
from controlplane.api import Api
from controlplane.plane import ControlPlane

Object = dict[str, Any]
_numbers = itertools.count()


@pytest.fixture(scope="module")
def webhooks(control_plane: ControlPlane) -> Iterator[Webhooks]:
    yield from running(control_plane)


@contextlib.contextmanager
def node(api: Api, labels: Mapping[str, str] | None = None, **amounts: str) -> Iterator[str]:
    """A node that is ready and nobody else's; ``amounts`` are allocatable, with _ for what no keyword may have."""
    name = f"fractions-{next(_numbers)}"
    labels = {"fractions.test/node": name, **(labels or {})}
    api.create({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels}})
    resources = {"cpu": "64", "memory": "256Gi", "pods": "110", **amounts}
    ready = {"type": "Ready", "status": "True", "reason": "Test", "message": ""}
    status = {"allocatable": resources, "capacity": resources, "conditions": [ready]}
    api.patch("v1", "Node", name, {"status": status}, subresource="status")
    api.wait("v1", "Node", name, lambda found: not found["spec"].get("taints"))
    yield name
    api.delete("v1", "Node", name)


def template(on: str, annotations: Mapping[str, str], limits: Mapping[str, str] | None = None) -> Object:
    """Of pods that ask for a share in our words."""
    container = {"name": "main", "image": "team/serve:1", "resources": {"limits": dict(limits or {})}}
    spec = {"nodeSelector": {"fractions.test/node": on}, "terminationGracePeriodSeconds": 0, "containers": [container]}
    return {"metadata": {"annotations": dict(annotations)}, "spec": spec}


def pod(space: str, name: str, on: str, annotations: Mapping[str, str], **more: Any) -> Object:
    made = template(on, annotations, **more)
    made["metadata"] |= {"name": name, "namespace": space}
    return {"apiVersion": "v1", "kind": "Pod", **made}
