"""Reads Workloads, queues, pods and evictions; nothing that anybody may have written into them makes this raise."""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from kopt.cluster.client.resources import Object, key_of
from kopt.cluster.holds.hold import holder_of, undo_of
from kopt.cluster.objects.annotations import mapping_of
from kopt.cluster.objects.conditions import condition, is_true, turned_s
from kopt.cluster.objects.fields import at, count, items, mapping, slim, text, texts
from kopt.cluster.objects.namespace import MODE_ANNOTATION
from kopt.cluster.objects.seals import SEAL
from kopt.cluster.workloads.kueue.objects import (
    DECISION_ANNOTATION,
    EVICTING_ANNOTATION,
    HOLDER,
    MINE,
    Evicting,
    GpuPod,
    KueueWorkload,
    PastEviction,
    PodSet,
    RecordedDecision,
    Shield,
)
from kopt.cluster.workloads.kueue.order import is_dispatched, order_mark_of, own_priority
from kopt.cluster.workloads.requests.gpus import SHARE_CLAIM
from kopt.cluster.workloads.requests.pods import is_gpu, quantity
from kopt.core.times import seconds_or_none

_WORKLOAD_ANNOTATION = "kueue.x-k8s.io/workload"


def read_kueue_workload(document: Object) -> KueueWorkload:
    """Nothing in a document that anybody may have written makes this raise."""
    metadata = slim(document)["metadata"]
    annotations = SEAL.proven(text(metadata, "uid"), mapping(metadata, "annotations"))
    spec_priority = at(document, "spec", "priority")
    holder = holder_of(document)
    shield = _shield_of(undo_of(document), spec_priority) if holder == HOLDER else None
    order = order_mark_of(document)
    own = own_priority(order, shield.priority if shield and shield.stands else spec_priority) or 0
    # The start of its wait is recorded in the hold, and after its release in the decision.
    decision = mapping_of(annotations, DECISION_ANNOTATION)
    reserved = _true_since_s(document, "QuotaReserved")
    evicted = _true_since_s(document, "Evicted")
    pod_sets = _pod_sets(document)
    return KueueWorkload(
        document=document,
        version=text(metadata, "resourceVersion"),
        key=key_of(document),
        uid=text(metadata, "uid"),
        owner_uid=next(
            (text(item, "uid") for _, item in items(metadata, "ownerReferences") if at(item, "controller") is True), ""
        ),
        priority=own,
        queue=text(document, "spec", "queueName"),
        cluster_queue=text(document, "status", "admission", "clusterQueue"),
        requests=_requests(pod_sets),
        uses=_uses(document),
        created_s=seconds_or_none(text(metadata, "creationTimestamp")) or 0.0,
        reserved_s=reserved,
        evicted_at_s=evicted,
        finished=_true_since_s(document, "Finished") is not None,
        active=at(document, "spec", "active") is not False,
        holder=holder,
        mode=_mode(document),
        shield=shield,
        evicting=evicting_of(annotations),
        decision=recorded_decision(annotations),
        pod_sets=pod_sets,
        let_go_s=seconds_or_none(text(undo_of(document) if holder == HOLDER else decision, "since")),
        mirrored=is_dispatched(document),
        order=order,
        is_counted=bool(_as_kueue_counts(document)),
    )


def local_queue_target(document: Object) -> str:
    """The ClusterQueue of a LocalQueue; empty for one that is stopped."""
    return text(document, "spec", "clusterQueue") if text(document, "spec", "stopPolicy") in ("", "None") else ""


def read_gpu_pod(pod: Object) -> GpuPod | None:
    """None for pods that have ended, and for those with neither GPUs nor annotations of ours."""
    metadata = pod["metadata"]
    annotations = mapping(metadata, "annotations")
    own_annotations = annotations_of(pod)
    gpus = sum(value for name, value in requests_of(mapping(pod, "spec")).items() if is_gpu(name))
    if text(pod, "status", "phase") in ("Succeeded", "Failed") or not (gpus or own_annotations):
        return None
    owner = next(
        (text(item, "uid") for _, item in items(metadata, "ownerReferences") if at(item, "controller") is True), ""
    )
    return GpuPod(
        key_of(pod),
        text(metadata, "uid"),
        text(annotations, _WORKLOAD_ANNOTATION),
        owner,
        gpus,
        own_annotations,
        text(metadata, "resourceVersion"),
        seconds_or_none(text(pod, "status", "startTime")),
        any(text(claim, "name") == SHARE_CLAIM for _, claim in items(pod, "spec", "resourceClaims")),
    )


def annotations_of(pod: Object) -> dict[str, str]:
    """The annotations of ours on a pod, without those that others wrote in our name (``cluster.objects.seals``)."""
    metadata = pod["metadata"]
    own = {name: str(value) for name, value in mapping(metadata, "annotations").items() if name.startswith("kaiwo.ai/")}
    return SEAL.proven(text(metadata, "uid"), own)


def read_eviction(document: Object) -> PastEviction | None:
    at_s, uid = seconds_or_none(text(document, "spec", "evictedAt")), text(document, "spec", "workload", "uid")
    return None if at_s is None or not uid else PastEviction(uid, at_s)


def amount(quantity_text: Any) -> int:
    """Thousandths; 0 for what cannot be read."""
    try:
        return quantity(quantity_text if isinstance(quantity_text, int) else str(quantity_text), True)
    except (ValueError, OverflowError):
        return 0


def requests_of(spec: Any) -> Counter[str]:
    """What one pod asks for, by resource: its containers together, or its largest init container; and the overhead."""
    total: Counter[str] = Counter()
    for _, item in items(spec, "containers"):
        total.update(_container(item))
    for _, item in items(spec, "initContainers"):
        if text(item, "restartPolicy") == "Always":
            total.update(_container(item))
        else:
            total |= _container(item)
    total.update(Counter({str(name): amount(value) for name, value in items(spec, "overhead")}))
    return total


def _container(item: Any) -> Counter[str]:
    requested = {**mapping(item, "resources", "limits"), **mapping(item, "resources", "requests")}
    return Counter({str(name): amount(value) for name, value in requested.items()})


def _pod_sets(document: Object) -> tuple[PodSet, ...]:
    remaining, counted, result = _remaining_counts(document), _as_kueue_counts(document), []
    for _, pods in items(document, "spec", "podSets"):
        number, spec = remaining.get(text(pods, "name"), 0), mapping(pods, "template", "spec")
        each = requests_of(spec)
        requests = {name: value * number for name, value in each.items()}
        if then := counted.get(text(pods, "name")):
            before = _pods_counted(each, then, number, count(pods, "count", default=0))
            requests = {name: value * number // before for name, value in then.items()}
        result.append(PodSet({"pods": 1000 * number, **requests}, spec))
    return tuple(result)


def _pods_counted(each: Mapping[str, int], then: Mapping[str, int], number: int, most: int) -> int:
    """Of how many pods of a set Kueue's count is: fewer may be left since. What it counts as pods request it says it,
    of ``each`` pod; where nothing does, or what is said is not one number, ``number`` are taken for those of then."""
    counts = (divmod(then[name], value) for name, value in each.items() if value > 0 and name in then)
    numbers = {0 if rest else whole for whole, rest in counts}
    if number in numbers or len(numbers) != 1:
        return number or 1
    (before,) = numbers
    return before if max(1, number) <= before <= most else number or 1


def _as_kueue_counts(document: Object) -> dict[str, dict[str, int]]:
    """By pod set what Kueue last found a Workload without quota to request: after its transformations of resources, and
    without what it is set to ignore. Empty until it has looked at it as it is now."""
    looked_at = at(condition(document, "QuotaReserved"), "observedGeneration")
    if at(document, "status", "admission") or looked_at not in (None, at(document, "metadata", "generation")):
        return {}
    return {
        text(pods, "name"): {str(name): amount(value) for name, value in requested.items()}
        for _, pods in items(document, "status", "resourceRequests")
        if (requested := mapping(pods, "resources"))
    }


def _requests(pod_sets: Iterable[PodSet]) -> dict[str, int]:
    total = Counter[str]()
    for pods in pod_sets:
        total.update(pods.requests)
    return dict(total)


def _uses(document: Object) -> dict[tuple[str, str], int]:
    """Of the quota that was given; what pods that have ended had of it is given back."""
    total, remaining = Counter[tuple[str, str]](), _remaining_counts(document)
    for _, pods in items(document, "status", "admission", "podSetAssignments"):
        flavors, here = mapping(pods, "flavors"), remaining.get(text(pods, "name"))
        admitted = count(pods, "count", default=0) or here or 1
        # More than were given are left where it was admitted in part.
        stays = admitted if here is None else min(here, admitted)
        for name, value in mapping(pods, "resourceUsage").items():
            total[str(flavors.get(name, "")), name] += amount(value) * stays // admitted
    return dict(total)


def _remaining_counts(document: Object) -> dict[str, int]:
    """The pods of each set that have not ended."""
    ended = {
        text(item, "name"): count(item, "count", default=0) for _, item in items(document, "status", "reclaimablePods")
    }
    return {
        name: max(0, count(item, "count", default=0) - ended.get(name, 0))
        for _, item in items(document, "spec", "podSets")
        for name in [text(item, "name")]
    }


def _true_since_s(document: Object, kind: str) -> float | None:
    """0 where the condition is true and does not say since when."""
    result = condition(document, kind)
    return (turned_s(result) or 0.0) if is_true(result) else None


def _mode(document: Object) -> str:
    """The Workload's own mode, else that of its pods."""
    result = [text(document, "metadata", "annotations", MODE_ANNOTATION)]
    result += [
        text(pods, "template", "metadata", "annotations", MODE_ANNOTATION)
        for _, pods in items(document, "spec", "podSets")
    ]
    return next((name for name in result if name), "")


def _shield_of(undo: Mapping[str, Any], priority_now: Any) -> Shield | None:
    raised, priority = at(undo, "raised"), at(undo, "priority")
    if not isinstance(raised, int) or not (priority is None or isinstance(priority, int)):
        return None
    until_s = seconds_or_none(text(undo, "until")) or 0.0
    return Shield(priority, raised, text(undo, "for"), until_s, stands=priority_now == raised)


def evicting_of(annotations: Mapping[str, Any]) -> Evicting | None:
    """Our notice to a victim, off its annotations."""
    result = mapping_of(annotations, EVICTING_ANNOTATION)
    at_s = seconds_or_none(text(result, "at"))
    return (
        Evicting(at_s, text(result, "for"), count(result, "pods", default=0))
        if text(result, "by") == MINE and at_s is not None
        else None
    )


def recorded_decision(annotations: Mapping[str, Any]) -> RecordedDecision | None:
    """Our decision, off the annotations of what waited."""
    result = mapping_of(annotations, DECISION_ANNOTATION)
    word = text(result, "verdict")
    if not word:
        return None
    at_s = seconds_or_none(text(result, "at")) or 0.0
    return RecordedDecision(word, seconds_or_none(text(result, "until")) or 0.0, texts(result, "victims"), at_s)
