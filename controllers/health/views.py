"""What is kept of nodes, pods and topologies. Nothing that anybody may have written makes a reader raise."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from kopt.cluster.client.resources import Object
from kopt.cluster.holds.node_taint import MARK_LABEL, TAINT_KEY, has_others_condition, is_marked, our_condition
from kopt.cluster.objects.custom.node_health import REPAIRED_ANNOTATION
from kopt.cluster.objects.fields import at, items, mapping, text
from kopt.cluster.runtime.lease import TERM_ANNOTATION
from kopt.cluster.workloads.node_selection import GPU_PRODUCT_LABELS
from kopt.cluster.workloads.owners import owner_of
from kopt.cluster.workloads.requests.pods import is_gpu, quantity
from kopt.controllers.health.devices import CLOSING
from kopt.core.hardware.health import NODE, Outcome
from kopt.core.times import seconds

_MOST_GPUS = 128
_BAD_IF_TRUE = re.compile(r"(gpu|xid|nvlink|nvswitch|infiniband|accelerat).*", re.IGNORECASE)
_BAD_IF_FALSE = re.compile(r"(gpuhealthy|acceleratedhardwareready|gpuready)", re.IGNORECASE)
"""Conditions of NVSentinel (GpuXidError …), node-problem-detector on AKS (GPUMissing …), EKS' node monitoring agent."""
_FAULT_TAINT = re.compile(r".*(nvsentinel|gpu[-_.]?(unhealthy|fault|error|quarantine)|unhealthy[-_.]?gpu).*", re.I)
_NOT_ITS_FAULT = frozenset({"Evicted", "Preempting", "Shutdown", "NodeShutdown", "Terminated", "DeadlineExceeded"})
_USERS_EXITS = frozenset({126, 127, 130, 143})
"""A command that cannot be run, and signals by which people and controllers end programs."""
_NUMBERED = re.compile(r"([-_.][0-9a-z]*\d[0-9a-z]*)+$")


@dataclass(frozen=True)
class ObservedNode:
    """A node. ``pool``: its GPU model and what it is sold as. ``grades`` are others' verdicts, in words.
    ``unavailable``: it takes no pods for reasons that are not ours. ``document``: by which it is written.
    ``by_claims``: no device plugin offers its GPUs, so they are allocated by claims alone."""

    name: str
    uid: str
    boot: str
    pool: str
    gpus: int
    repaired_s: float
    grades: tuple[str, ...]
    unavailable: bool
    document: Object
    by_claims: bool = False

    @property
    def has_gpus(self) -> bool:
        """By what it offers and its labels; a node of which only slices speak has them, too."""
        return bool(self.gpus or self.pool)

    @property
    def marked(self) -> bool:
        """Whether anything of ours may be on it."""
        return is_marked(self.document)


@dataclass(frozen=True)
class ObservedLinks:
    """What a node's agent found worse than it was: text by GPU, and falls by part. ``gpus``: indexes of its GPUs by
    UUID and PCI address, in lower case."""

    degraded: Mapping[str, str]
    falls: Mapping[str, float]
    gpus: Mapping[str, str]


def read_node(node: Object) -> ObservedNode:
    metadata, status = mapping(node, "metadata"), mapping(node, "status")
    capacity = {**mapping(status, "capacity"), **mapping(status, "allocatable")}
    gpus = max((_amount(value) for name, value in capacity.items() if is_gpu(str(name))), default=0)
    labels = mapping(metadata, "labels")
    return ObservedNode(
        text(metadata, "name"),
        text(metadata, "uid"),
        text(status, "nodeInfo", "bootID"),
        next((text(labels, name) for name in GPU_PRODUCT_LABELS if text(labels, name)), ""),
        min(gpus, _MOST_GPUS),
        _time_s(text(metadata, "annotations", REPAIRED_ANNOTATION)),
        tuple(_judgements(node)),
        _is_unavailable(node),
        _written(node),
    )


def _judgements(node: Object) -> Iterator[str]:
    ours = our_condition(node)
    for _, item in items(node, "status", "conditions"):
        kind, state = text(item, "type"), text(item, "status")
        bad_if_false = _BAD_IF_FALSE.fullmatch(kind) is not None
        is_bad = state == ("False" if bad_if_false else "True")
        if item is not ours and is_bad and (bad_if_false or _BAD_IF_TRUE.fullmatch(kind)):
            yield f"condition {kind[:80]}: {text(item, 'message')[:160] or text(item, 'reason')[:80]}"
    for _, taint in items(node, "spec", "taints"):
        key = text(taint, "key")
        if key != TAINT_KEY and _FAULT_TAINT.fullmatch(key):
            yield f"taint {key[:80]}"


def _is_unavailable(node: Object) -> bool:
    ready = [text(item, "status") for _, item in items(node, "status", "conditions") if text(item, "type") == "Ready"]
    others = [item for _, item in items(node, "spec", "taints") if text(item, "key") not in (TAINT_KEY, *_USUAL)]
    closed = any(text(item, "effect") in CLOSING for item in others)
    return at(node, "spec", "unschedulable") is True or closed or any(state != "True" for state in ready)


_USUAL = ("nvidia.com/gpu", "amd.com/gpu", "sku", "dedicated")
"""Taints that keep pods without GPUs away from such nodes, and nobody else."""


def _written(node: Object) -> Object:
    """What writing needs: metadata of ours, taints and conditions."""
    metadata = mapping(node, "metadata")
    kept = {name: metadata[name] for name in ("name", "uid", "resourceVersion") if name in metadata}
    labels = {MARK_LABEL: text(metadata, "labels", MARK_LABEL)} if is_marked(node) else {}
    term = text(metadata, "annotations", TERM_ANNOTATION)
    annotations = {TERM_ANNOTATION: term} if term else {}
    return {
        "metadata": kept | {"labels": labels, "annotations": annotations},
        "spec": {"taints": [item for _, item in items(node, "spec", "taints")]},
        "status": {"conditions": [item for _, item in items(node, "status", "conditions")]},
    }


def others_have_condition(node: ObservedNode) -> bool:
    return has_others_condition(node.document)


def read_outcome(pod: Object) -> Outcome | None:
    """How a pod with GPUs ended; None for one that has not, or that others ended."""
    node, phase = text(pod, "spec", "nodeName"), text(pod, "status", "phase")
    if not node or phase not in ("Succeeded", "Failed") or not _has_gpus(pod):
        return None
    owner = owner_of(pod, "pods")
    job = f"{owner.namespace}/{owner.plural}/{owner.name}"
    family = f"{owner.namespace}/{_NUMBERED.sub('', owner.name)}"
    ended = [item for _, item in items(pod, "status", "containerStatuses")]
    ended_s = max((_time_s(text(item, "state", "terminated", "finishedAt")) for item in ended), default=0.0)
    at_s = ended_s or _time_s(text(pod, "metadata", "creationTimestamp"))
    if phase == "Succeeded":
        return Outcome(node, job, False, at_s, family)
    return Outcome(node, job, True, at_s, family) if _failed_by_itself(pod, ended) else None


def _failed_by_itself(pod: Object, ended: list[Any]) -> bool:
    disrupted = any(
        text(item, "type") == "DisruptionTarget" and text(item, "status") == "True"
        for _, item in items(pod, "status", "conditions")
    )
    if disrupted or text(pod, "status", "reason") in _NOT_ITS_FAULT or at(pod, "metadata", "deletionTimestamp"):
        return False
    states = [mapping(item, "state", "terminated") for item in ended]
    if any(text(state, "reason") == "OOMKilled" for state in states):
        return False
    codes = [at(state, "exitCode") for state in states]
    return any(isinstance(code, int) and code != 0 and code not in _USERS_EXITS for code in codes)


def _has_gpus(pod: Object) -> bool:
    for _, container in items(pod, "spec", "containers"):
        amounts = {**mapping(container, "resources", "requests"), **mapping(container, "resources", "limits")}
        if any(is_gpu(str(name)) and _amount(value) for name, value in amounts.items()):
            return True
    return any(True for _ in items(pod, "spec", "resourceClaims"))


def read_links(topology: Object) -> ObservedLinks | None:
    gpus = sorted(items(topology, "spec", "gpus"), key=lambda item: _amount(at(item[1], "index")))
    slots = {
        name: str(slot)
        for slot, (_, gpu) in enumerate(gpus)
        for name in (text(gpu, "pci"), f"GPU{_amount(at(gpu, 'index'))}")
        if name
    }
    identities = {
        name.lower(): str(slot)
        for slot, (_, gpu) in enumerate(gpus)
        for name in (text(gpu, "uuid"), text(gpu, "pci"))
        # Where a GPU is cut its parts are numbered, and their number is not that of the GPU.
        if name and not any(text(each, "partition") for _, each in gpus)
    }
    degraded: dict[str, str] = {}
    falls: dict[str, float] = {}
    for _, item in items(topology, "status", "degraded"):
        part = text(item, "part")
        gpu = next((slots[name] for name in part.split()[1:] if name in slots), NODE)
        was, now = at(item, "was"), at(item, "now")
        falls[f"{part[:120]}/{gpu}"] = float(_amount(at(item, "falls")))
        if isinstance(was, int | float) and isinstance(now, int | float) and now < was:
            degraded[gpu] = f"{part[:120]} had {was:g}, has {now:g}"
    return ObservedLinks(degraded, falls, identities) if falls or identities else None


def _amount(value: object) -> int:
    try:
        return quantity(value) if isinstance(value, str | int) and value != "" else 0
    except ValueError:
        return 0


def _time_s(written: str) -> float:
    try:
        return seconds(written) if written else 0.0
    except (ValueError, OverflowError):
        return 0.0
