"""A set of equal pods as their operator starts them: what runs in the container with the GPUs, and where its request
stands."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from kopt.cluster.client.resources import Object
from kopt.cluster.objects.fields import Path, at, items, mapping
from kopt.cluster.workloads.kinds import PodSet
from kopt.cluster.workloads.requests.gpus import resources_milli
from kopt.core.reason import Reason


@dataclass(frozen=True)
class Launched:
    """``spec`` and ``annotations`` of one pod, with the command and the variables that the operator gives it.

    ``nodes`` pods run the job's processes, at most ``slots`` on each where ``mpirun`` spreads them. ``metadata`` and
    ``resources`` are where the object keeps the pods' annotations and the request of the container with the GPUs, None
    where it does not; ``repeated`` are other fields with the same number of GPUs. ``silent`` is why nothing can be
    said about what the pods need.
    """

    spec: Mapping[str, Any]
    annotations: Mapping[str, Any]
    nodes: int = 1
    slots: int | None = None
    metadata: Path | None = None
    resources: Path | None = None
    repeated: tuple[Path, ...] = ()
    silent: Reason | None = None

    @property
    def container(self) -> tuple[int, Mapping[str, Any]] | None:
        """Index and content of the container that has the GPUs; the first where they come by annotation."""
        return gpu_container_of(self.spec)

    def running(self, **fields: Any) -> "Launched":
        """With other fields of the container with the GPUs (``command``, ``args``, ``env``)."""
        container = self.container
        if container is None:
            return self
        containers = list(self.spec["containers"])
        kept = {name: value for name, value in container[1].items() if name not in fields}
        containers[container[0]] = kept | {name: value for name, value in fields.items() if value is not None}
        return replace(self, spec={**self.spec, "containers": containers})

    def with_variables(self, variables: Mapping[str, str]) -> "Launched":
        """With more variables behind those of the container: the later of two of one name wins."""
        container = self.container
        own = [] if container is None else [item for _, item in items(container[1], "env")]
        return self.running(env=own + [{"name": name, "value": value} for name, value in variables.items()])


def gpu_container_of(spec: Any) -> tuple[int, Mapping[str, Any]] | None:
    """Index and content of the container of a pod's specification that has the GPUs, else the first."""
    listed = items(spec, "containers") if isinstance(at(spec, "containers"), list) else ()
    containers = [(int(index), container) for index, container in listed if isinstance(container, Mapping)]
    return max(containers, key=lambda item: resources_milli(mapping(item[1], "resources")), default=None)


def as_written(document: Object, pods: PodSet) -> Launched:
    """As the template stands in the object."""
    if pods.spec is None:
        return Launched({}, {})
    spec = mapping(document, *pods.spec)
    container = gpu_container_of(spec)
    resources = None if container is None else (*pods.spec, "containers", container[0], "resources")
    annotations = {} if pods.metadata is None else mapping(document, *pods.metadata, "annotations")
    return Launched(spec, annotations, metadata=pods.metadata, resources=resources)
