"""``kopt estimate`` of a manifest whose pods are started together: every set of pods with GPUs, and all of them."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kopt.cli.script_arguments import RUNTIMES, read_documents, read_manifest

if TYPE_CHECKING:
    from kopt.cluster.workloads.workload import Workload
    from kopt.core.workload.sizing import SizingEstimate
    from kopt.models.sizing.estimate import CodeResult, EstimateOptions

_TORCH: Mapping[str, Any] = {
    "spec": {
        "mlPolicy": {"torch": {}},
        "template": {
            "spec": {
                "replicatedJobs": [
                    {"name": "node", "template": {"spec": {"template": {"spec": {"containers": [{"name": "node"}]}}}}}
                ]
            }
        },
    }
}
"""A runtime of torch's, as the trainer ships it, where a file does not have that of its TrainJob."""
_ASSUMED = "its runtime is not in the file; one of torch's is assumed"

Make = Callable[[Mapping[str, Any], "EstimateOptions"], "tuple[SizingEstimate, CodeResult]"]
"""Estimates a template."""


@dataclass(frozen=True)
class Role:
    """Equal pods of a job. ``question`` is what ``/v1/sizing`` is asked about them, None where ``why`` says why not."""

    name: str
    pods: int
    gpus: int
    template: Mapping[str, Any]
    nodes: int = 1
    slots: int | None = None
    question: Mapping[str, Any] | None = None
    silent: Any = None

    @property
    def key(self) -> str:
        """Equal for roles that run the same and ask for the same."""
        return json.dumps([self.template.get("spec"), self.nodes, self.slots], sort_keys=True, default=str)


@dataclass(frozen=True)
class SizedRole:
    """A role, its estimate, and what the code showed."""

    role: Role
    estimate: "SizingEstimate"
    code: "CodeResult"

    @property
    def requested(self) -> int:
        """GPUs of all its pods."""
        return self.role.gpus * self.role.pods

    @property
    def advised(self) -> int:
        """GPUs that all its pods are advised to ask for; as many as they ask for where nothing is advised."""
        advice = self.estimate.recommendation
        return self.requested if advice.kind.value == "none" else advice.count * self.role.pods

    def to_dict(self) -> dict[str, Any]:
        memory, advice = self.estimate.to_dict()["memory"], self.estimate.recommendation
        return {
            "role": self.role.name,
            "pods": self.role.pods,
            "gpus_per_pod": self.role.gpus,
            "world_size": self.code.world_size,
            "memory": {name: memory[name] for name in ("peak_bytes", "low_bytes", "high_bytes", "probability")},
            "confidence": self.estimate.memory.confidence,
            "recommendation": advice.to_dict(),
            "reason": advice.reason.to_dict(),
        }


@dataclass(frozen=True)
class WholeJob:
    """All roles of a job. ``most`` needs the most memory on each GPU."""

    kind: str
    name: str
    roles: tuple[SizedRole, ...]
    assumptions: tuple[str, ...] = ()

    @property
    def most(self) -> SizedRole:
        return max(self.roles, key=lambda item: item.estimate.memory.high or 0.0)

    def to_dict(self) -> dict[str, Any]:
        return {
            "kind": self.kind,
            "name": self.name,
            "pods": sum(item.role.pods for item in self.roles),
            "gpus": sum(item.requested for item in self.roles),
            "advised_gpus": sum(item.advised for item in self.roles),
            "roles": [item.to_dict() for item in self.roles],
        }


@dataclass(frozen=True)
class Manifest:
    """A workload of several pods, or one whose command is not in its template."""

    workload: "Workload"
    document: Mapping[str, Any]
    roles: tuple[Role, ...]
    assumptions: tuple[str, ...] = ()

    def sized(self, make: Make, options: Callable[[Mapping[str, Any]], "EstimateOptions"]) -> WholeJob:
        """Every role; roles that run the same are estimated once."""
        made: dict[str, tuple[SizingEstimate, CodeResult]] = {}
        for role in self.roles:
            if role.key not in made:
                made[role.key] = self._made(role, make, options)
        sized = tuple(SizedRole(role, *made[role.key]) for role in self.roles)
        return WholeJob(self.workload.kind.resource.kind, self.workload.name, sized, self.assumptions)

    def _made(
        self, role: Role, make: Make, options: Callable[[Mapping[str, Any]], "EstimateOptions"]
    ) -> "tuple[SizingEstimate, CodeResult]":
        from kopt.core.workload.sizing import RequestedGpus
        from kopt.formats.processes import Slots
        from kopt.policies.sizing.advice import advise

        slots = None if role.slots is None else Slots(role.nodes, role.slots)
        if role.silent is None:
            return make(role.template, replace(options(role.template), slots=slots))
        # What its command needs is worth knowing, even where nobody can say in which of its pods that runs.
        estimate, code = make(self.document, options(role.template))
        advice = advise(None, RequestedGpus(role.gpus), estimate.gpu, silent=role.silent)
        reasons = tuple(reason for reason in estimate.reasons if reason != estimate.recommendation.reason)
        return replace(estimate, recommendation=advice, reasons=(*reasons, advice.reason)), code


def read_whole_job(path: Path) -> Manifest | None:
    """The job in a manifest's file; None for one pod that says itself what it runs, and for what is no workload."""
    from kopt.cluster.workloads.requests.external import complete
    from kopt.cluster.workloads.workload import read_workload

    document = dict(read_manifest(path))
    metadata = document.get("metadata")
    document["metadata"] = dict(metadata) if isinstance(metadata, dict) else {}
    name = str(document["metadata"].get("name") or document["metadata"].get("generateName") or path.stem)
    group = str(document.get("apiVersion", "v1")).rpartition("/")[0]
    namespace = str(document["metadata"].get("namespace") or "")
    workload = read_workload(document, group, str(document.get("kind", "")), namespace, name)
    if workload is None:
        return None
    runtimes = [item for item in read_documents(path) if item.get("kind") in RUNTIMES]
    workload, missing = complete(workload, lambda reference: _runtime(runtimes, reference))
    is_assumed = bool(missing) and any(reference.resource.kind in RUNTIMES for reference in missing)
    if is_assumed:
        workload = complete(workload, lambda _: dict(_TORCH))[0]
    roles = tuple(_roles(workload))
    together = sum(role.pods for role in roles) > 1 or any(role.silent or role.slots for role in roles)
    if not roles or not (together or _is_put_together(workload)):
        return None
    return Manifest(workload, document, roles, (_ASSUMED,) if is_assumed else ())


def _runtime(runtimes: Sequence[Mapping[str, Any]], reference: Any) -> dict[str, Any] | None:
    for item in runtimes:
        metadata = item.get("metadata")
        named = metadata.get("name") if isinstance(metadata, dict) else None
        if (item.get("kind"), named) == (reference.resource.kind, reference.name):
            return dict(item)
    return None


def _is_put_together(workload: "Workload") -> bool:
    from kopt.cluster.workloads.launching.launching import is_put_together

    return is_put_together(workload)


def _roles(workload: "Workload") -> "Iterator[Role]":
    from kopt.cluster.workloads.pod_sizing import question_of, requested_gpus, role_of, silence, template_of

    for pods in workload.pod_sets:
        template = template_of(workload, pods)
        if not pods.gpus or template is None:
            continue
        question = question_of(workload, pods)
        name = role_of(workload, pods) or workload.kind.resource.kind
        gpus = requested_gpus(workload, pods).gpus or 1
        how = {} if question is None else question
        nodes, slots = how.get("nodes", 1), how.get("slots_per_node")
        yield Role(name, pods.pods, gpus, template, nodes, slots, question, silence(workload, pods))
