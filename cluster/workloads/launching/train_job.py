"""TrainJob: its runtime's template with what ``spec.trainer`` overrides.

Sources: kubeflow/trainer v2.1, ``pkg/runtime/framework/plugins/jobset/builder.go`` (image, command, args, resources of
the container ``node``), ``plugins/torch/torch.go`` (``PET_NNODES``, ``PET_NPROC_PER_NODE``), ``plugins/mpi/mpi.go``.
The runtime belongs to everybody who uses it: another request is written into the TrainJob alone.
"""

import copy
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from kopt.cluster.objects.fields import Path, at, items, mapping, text
from kopt.cluster.workloads.kinds import PodSet
from kopt.cluster.workloads.launching.kubeflow import NODES_VARIABLE, PROCESSES_VARIABLE
from kopt.cluster.workloads.launching.launched import Launched
from kopt.cluster.workloads.workload import Workload
from kopt.core.reason import Reason

CONTAINER = "node"
"""The container of a runtime's training step that a TrainJob's trainer overrides."""
_TRAINER: Path = ("spec", "trainer")
_OVERRIDDEN = ("image", "command", "args")


def train_job(workload: Workload, pods: PodSet) -> Launched:
    """The pods of the training step; silent where the runtime is not known, or starts them another way."""
    if pods.made_from is None or pods.made_from.template is None:
        return Launched({}, {}, silent=_unknown("its runtime cannot be read"))
    template, policy = pods.made_from.template, pods.made_from.policy
    result = Launched(
        _spec(workload.document, template, pods.made_from.name),
        mapping(template, "metadata", "annotations"),
        metadata=("metadata",),
        resources=(*_TRAINER, "resourcesPerNode"),
    )
    container = result.container
    if container is None or text(container[1], "name") != CONTAINER or not pods.made_from.trains:
        return replace(result, resources=None, silent=_unknown("its GPUs are not those of the trainer's own container"))
    if "mpi" in policy:
        return replace(result, silent=_unknown("its runtime starts it by MPI, on nodes that it divides itself"))
    if not isinstance(at(workload.document, *_TRAINER), dict):
        # Without a trainer of its own the operator adds no variables, and nothing overrides the runtime.
        return replace(result, resources=None)
    return result.with_variables(_variables(workload, policy, pods.pods)) if "torch" in policy else result


def _variables(workload: Workload, policy: Mapping[str, Any], nodes: int) -> dict[str, str]:
    stated = at(workload.document, *_TRAINER, "numProcPerNode") or at(policy, "torch", "numProcPerNode") or "auto"
    return {NODES_VARIABLE: str(nodes), PROCESSES_VARIABLE: str(stated)}


def _spec(document: Mapping[str, Any], template: Mapping[str, Any], name: str) -> dict[str, Any]:
    """The runtime's pod specification with the trainer's overrides."""
    spec = copy.deepcopy(dict(mapping(template, "spec")))
    trainer = mapping(document, *_TRAINER)
    for _, container in items(spec, "containers"):
        if text(container, "name") != CONTAINER:
            continue
        container |= {key: trainer[key] for key in _OVERRIDDEN if trainer.get(key) is not None}
        if trainer.get("resourcesPerNode"):
            container["resources"] = copy.deepcopy(trainer["resourcesPerNode"])
        own = {text(item, "name") for _, item in items(trainer, "env")}
        kept = [item for _, item in items(container, "env") if text(item, "name") not in own]
        container["env"] = kept + [item for _, item in items(trainer, "env")]
    selector = dict(mapping(spec, "nodeSelector"))
    for _, override in items(document, "spec", "podTemplateOverrides"):
        if any(text(target, "name") == name for _, target in items(override, "targetJobs")):
            selector |= mapping(override, "spec", "nodeSelector")
    return spec | ({"nodeSelector": selector} if selector else {})


def _unknown(why: str) -> Reason:
    return Reason("RUNTIME_UNKNOWN", f"Nothing is advised, as {why}.")
