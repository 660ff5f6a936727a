"""GPU workloads that wait and run, queue by queue, in the order in which their queue takes them.

Kueue admits the highest priority first, then the longest wait: since its creation, or since it was evicted
because its pods did not get ready (``workload.Ordering`` of Kueue). Where the queues controller has written an order,
its number is that priority. KAI's and plain pods have no such order to be read; they are listed by age.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from kopt.cluster.client.resources import Object
from kopt.cluster.holds.hold import PARKED, holder_of, queue_of
from kopt.cluster.objects.conditions import condition, is_true, turned_s
from kopt.cluster.objects.custom.checkpoint import source_of
from kopt.cluster.objects.fields import at, count, items, mapping, text
from kopt.cluster.workloads.kueue.reading import read_kueue_workload
from kopt.cluster.workloads.requests.gpus import gpus_of
from kopt.cluster.workloads.tracked_pod import TrackedPod, read_pod
from kopt.cluster.workloads.workload_class import class_of_pod
from kopt.core.scheduling.eviction import System
from kopt.core.scheduling.overview import PoolState
from kopt.core.scheduling.queued import Queued, State
from kopt.core.times import seconds_or_none
from kopt.core.workload.checkpoint import Source

_KAI_QUEUE = "kai.scheduler/queue"
_VOLCANO_QUEUE = "scheduling.volcano.sh/queue-name"
_RISK, _OBSERVED = "kaiwo.ai/work-at-risk", "kaiwo.ai/checkpoint-observed-at"
_STALE_S = 600.0


def queued_of(
    document: Object, cluster_queues: Mapping[tuple[str, str], str], held: Mapping[str, Object] | None = None
) -> Queued | None:
    """A Workload of Kueue's with GPUs that has not ended. ``cluster_queues``: of (namespace, LocalQueue); ``held``:
    objects that carry the mark of a holder, by uid: one whose owner is parked waits in a queue that there is not."""
    gpus = _gpus(document)
    workload = read_kueue_workload(document)
    if not gpus or workload.finished or text(document, "metadata", "deletionTimestamp"):
        return None
    owner: Mapping[str, Any] = next(
        (item for _, item in items(document, "metadata", "ownerReferences") if at(item, "controller") is True), {}
    )
    local, holder = queue_of(document) or workload.queue, workload.holder
    if local == PARKED:
        parked = (held or {}).get(text(owner, "uid"), {"metadata": {}})
        local, holder = queue_of(parked) or "", holder_of(parked)
    queue = workload.cluster_queue or cluster_queues.get((workload.key[0], local), "")
    state, since_s, message = _state(document)
    if workload.queue == PARKED and state is State.PENDING:
        state, message = State.HELD, ""
    return Queued(
        workload.key[0],
        text(owner, "name") or workload.key[1],
        text(owner, "kind") or "Workload",
        workload.uid,
        text(owner, "uid"),
        workload.key[1],
        System.KUEUE,
        local,
        queue or f"{workload.key[0]}/{local}",
        workload.priority,
        gpus,
        state,
        workload.created_s,
        _ordered_s(document, workload.created_s),
        since_s,
        holder,
        message,
        frozenset(flavor for flavor, _ in workload.uses),
        classified=workload.classified,
        order=workload.queue_priority if workload.is_ordered else None,
    )


def lines(
    queueds: Iterable[Queued], pools: Sequence[PoolState] = (), pods: Iterable[Object] = (), now_s: float = 0.0
) -> list[Queued]:
    """By queue and in its order: what runs, then what waits with its position, then what is held or stopped."""
    risks = _risks(pods, now_s)
    placed = [_placed(queued, pools, risks) for queued in queueds]
    placed.sort(key=_order)
    numbers: dict[str, int] = {}
    for index, queued in enumerate(placed):
        if queued.state is State.PENDING:
            numbers[queued.queue] = numbers.get(queued.queue, 0) + 1
            placed[index] = replace(queued, position=numbers[queued.queue])
    return placed


def _order(queued: Queued) -> tuple[Any, ...]:
    stage = list(State).index(queued.state)
    if queued.system is not System.KUEUE:
        return queued.queue, stage, 0, queued.created_s, queued.full_name
    return queued.queue, stage, -queued.queue_priority, queued.ordered_s, queued.full_name


def _placed(queued: Queued, pools: Sequence[PoolState], risks: Mapping[str, tuple[float, Source | None]]) -> Queued:
    has_gpus = queued.state in (State.RUNNING, State.STARTING, State.EVICTING)
    names = (queued.queue, queued.local_queue, f"{queued.namespace}/{queued.local_queue}")
    pool = next((pool.name for pool in pools if has_gpus and pool.lends_to(names, queued.flavors)), "")
    risk = risks.get(f"{queued.namespace}/{queued.workload}", risks.get(queued.owner_uid or queued.uid))
    risk_gpu_s, source = risk if risk and has_gpus else (None, None)
    return replace(queued, pool=pool, risk_gpu_s=risk_gpu_s, risk_source=source)


def unqueued(pods: Iterable[Object], now_s: float, owners: frozenset[str] = frozenset()) -> list[Queued]:
    """Gangs and pods with GPUs that Kueue does not know: KAI's, Volcano's, and those of no queue at all.

    ``owners`` are uids of what Kueue's Workloads belong to.
    """
    result: dict[str, list[tuple[Object, TrackedPod]]] = {}
    for pod in pods:
        if is_kueues(pod):
            continue
        try:
            parsed = read_pod(pod)
        except (KeyError, ValueError, TypeError, AttributeError):
            continue
        if parsed is None or parsed.ended or parsed.system is System.KUEUE:
            continue
        if parsed.owner is None or parsed.owner.uid not in owners:
            # A gang of KAI's may have pods of several owners.
            gang = f"{parsed.key[0]}/{parsed.group}" if parsed.group else parsed.anchor
            result.setdefault(gang, []).append((pod, parsed))
    return [_gang(members, now_s) for members in result.values()]


def is_kueues(pod: Object) -> bool:
    """Kueue labels the pods of what it lets run."""
    labels = mapping(pod, "metadata", "labels")
    return "kueue.x-k8s.io/podset" in labels or "kueue.x-k8s.io/workload" in mapping(pod, "metadata", "annotations")


def _gang(members: Sequence[tuple[Object, TrackedPod]], now_s: float) -> Queued:
    pod, first = members[0]
    queue = text(pod, "metadata", "labels", _KAI_QUEUE) or text(pod, "metadata", "annotations", _VOLCANO_QUEUE)
    unplaced = [item for item, _ in members if not text(item, "spec", "nodeName")]
    running = [member.started_at_s for _, member in members if member.started_at_s is not None]
    gates = [text(gate, "name") for item in unplaced for _, gate in items(item, "spec", "schedulingGates")]
    state, since_s, message = State.RUNNING, max(running, default=None), ""
    if any(item.deleted_at_s is not None for _, item in members):
        state, since_s = State.EVICTING, min(item.deleted_at_s for _, item in members if item.deleted_at_s is not None)
    elif unplaced:
        scheduled = condition(unplaced[0], "PodScheduled")
        state, message = State.HELD if gates else State.PENDING, text(scheduled, "message")
        since_s = turned_s(scheduled) or seconds_or_none(text(unplaced[0], "metadata", "creationTimestamp"))
    elif len(running) < len(members):
        state, since_s = State.STARTING, None
    created_s = min(
        (seconds_or_none(text(item, "metadata", "creationTimestamp")) or now_s for item, _ in members), default=now_s
    )
    owner, priority = first.owner, at(pod, "spec", "priority")
    return Queued(
        first.key[0],
        owner.name if owner else first.key[1],
        owner.kind if owner else "Pod",
        first.uid,
        owner.uid if owner else "",
        first.group,
        first.system,
        queue,
        queue or f"{first.system.value if first.system is not System.NONE else 'no'} queue",
        priority if isinstance(priority, int) else None,
        sum(item.gpus for _, item in members),
        state,
        created_s,
        created_s,
        since_s,
        holder_of(pod) or ("a scheduling gate" if gates else ""),
        message,
        classified=class_of_pod(pod),
    )


def _gpus(document: Object) -> int:
    return sum(
        count(item, "count")
        * gpus_of(mapping(item, "template", "spec"), mapping(item, "template", "metadata", "annotations"))
        for _, item in items(document, "spec", "podSets")
    )


def _state(document: Object) -> tuple[State, float | None, str]:
    reserved, evicted = condition(document, "QuotaReserved"), condition(document, "Evicted")
    if is_true(reserved):
        if is_true(evicted):
            return State.EVICTING, turned_s(evicted), text(evicted, "message")
        ready, admitted = condition(document, "PodsReady"), condition(document, "Admitted")
        if not is_true(admitted):
            return State.STARTING, turned_s(reserved), _checks(document) or text(admitted, "message")
        if ready and not is_true(ready):
            return State.STARTING, turned_s(ready) or turned_s(admitted), text(ready, "message")
        return State.RUNNING, turned_s(admitted), ""
    created_s = seconds_or_none(text(document, "metadata", "creationTimestamp"))
    since_s = turned_s(evicted) if is_true(evicted) else turned_s(reserved) or created_s
    if holder_of(document):
        return State.HELD, since_s, text(reserved, "message")
    if at(document, "spec", "active") is False:
        return State.STOPPED, turned_s(evicted) or created_s, text(evicted, "message")
    return State.PENDING, since_s, text(reserved, "message")


def _checks(document: Object) -> str:
    """What admission checks that are not through say."""
    result = [
        f"{text(item, 'name')} is {text(item, 'state').lower() or 'pending'}"
        + (f" ({text(item, 'message')})" if text(item, "message") else "")
        for _, item in items(document, "status", "admissionChecks")
        if text(item, "state") != "Ready"
    ]
    return f"admission checks: {', '.join(result)}" if result else ""


def _ordered_s(document: Object, created_s: float) -> float:
    evicted = condition(document, "Evicted")
    if is_true(evicted) and text(evicted, "reason") in ("PodsReadyTimeout", "AdmissionCheck"):
        return turned_s(evicted) or created_s
    return created_s


def _risks(pods: Iterable[Object], now_s: float) -> dict[str, tuple[float, Source | None]]:
    """GPU-seconds at risk by gang and by owner, and whose word that is: each pod carries that of its whole job."""
    risks: dict[str, tuple[float, Source | None]] = {}
    for pod in pods:
        annotations = mapping(pod, "metadata", "annotations")
        observed_s, written = seconds_or_none(text(annotations, _OBSERVED)), text(annotations, _RISK)
        if observed_s is None or now_s - observed_s > _STALE_S or not (written.isascii() and written.isdigit()):
            continue
        risk = float(written[:15]), source_of(annotations)
        owner = next(
            (
                text(item, "uid")
                for _, item in items(pod, "metadata", "ownerReferences")
                if at(item, "controller") is True
            ),
            text(pod, "metadata", "uid"),
        )
        workload = text(annotations, "kueue.x-k8s.io/workload")
        for key in (owner, f"{text(pod, 'metadata', 'namespace')}/{workload}" if workload else ""):
            if key:
                risks[key] = max(risks.get(key, risk), risk, key=lambda item: item[0])
    return risks
