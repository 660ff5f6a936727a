"""GPU workloads that wait and run, queue by queue, in the order in which their queue takes them.

Kueue takes the highest priority first, then whoever waits longest: since it was created, or since it was evicted
because its pods did not get ready (``workload.Ordering`` of Kueue). KAI's and plain pods have no such order to be read;
they are listed by age.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from kopt.cluster.held import PARKED, holder_of, queue_of
from kopt.cluster.resources import Object
from kopt.controllers.ledger.seen import anchor
from kopt.controllers.ledger.views import PodView, pod_view
from kopt.controllers.preemption.reading import seconds, workload_view
from kopt.controllers.preemption.views import Cover
from kopt.controllers.webhook.gpus import gpus_of
from kopt.controllers.webhook.objects import at, count, items, mapping, text
from kopt.core.evictions import System
from kopt.core.overview import PoolState

_KAI_QUEUE = "kai.scheduler/queue"
_VOLCANO_QUEUE = "scheduling.volcano.sh/queue-name"
_RISK, _OBSERVED = "kaiwo.ai/work-at-risk", "kaiwo.ai/checkpoint-observed-at"
_STALE_S = 600.0


class State(StrEnum):
    """Ordered as they are listed: what runs, what will, what cannot."""

    RUNNING = "running"
    EVICTING = "leaving"
    """It was told to give its GPUs back, and has not yet."""
    STARTING = "starting"
    """It has quota; not all of its pods are ready."""
    WAITING = "waiting"
    HELD = "held"
    STOPPED = "stopped"
    """Its owner or an administrator has taken it out of its queue."""


@dataclass(frozen=True)
class Queued:
    """A GPU workload in a queue. ``name`` is that of the job where one owns it; ``gpus`` are milli-GPU.

    ``since_s``: since when it is in its state. ``position``: among those that wait in ``queue``, from 1; None for what
    does not wait. ``risk_gpu_s``: work that would be lost now. ``pool``: the LendingPool whose GPUs it uses.
    """

    namespace: str
    name: str
    kind: str
    uid: str
    owner_uid: str
    workload: str
    system: System
    local_queue: str
    queue: str
    priority: int | None
    gpus: int
    state: State
    created_s: float
    ordered_s: float
    since_s: float | None = None
    holder: str = ""
    message: str = ""
    flavors: frozenset[str] = frozenset()
    position: int | None = None
    risk_gpu_s: float | None = None
    pool: str = ""
    cover: Cover | None = None

    @property
    def full_name(self) -> str:
        return f"{self.namespace}/{self.name}"


def condition(document: Any, kind: str) -> Mapping[str, Any]:
    """A condition of an object's status; empty where there is none."""
    found = items(document, "status", "conditions")
    return next((one for _, one in found if text(one, "type") == kind), {})


def is_true(found: Mapping[str, Any]) -> bool:
    return text(found, "status") == "True"


def turned_s(found: Mapping[str, Any]) -> float | None:
    return seconds(text(found, "lastTransitionTime"))


def queued_of(document: Object, cluster_queues: Mapping[tuple[str, str], str],
              held: Mapping[str, Object] | None = None) -> Queued | None:  # fmt: skip
    """A Workload of Kueue's with GPUs that has not ended. ``cluster_queues``: of (namespace, LocalQueue); ``held``:
    objects that carry the mark of a holder, by uid: one whose owner is parked waits in a queue that there is not."""
    gpus = _gpus(document)
    view = workload_view(document)
    if not gpus or view.finished or text(document, "metadata", "deletionTimestamp"):
        return None
    owner: Mapping[str, Any] = next((one for _, one in items(document, "metadata", "ownerReferences")
                                     if at(one, "controller") is True), {})  # fmt: skip
    local, holder = queue_of(document) or view.queue, view.holder
    if local == PARKED:
        parked = (held or {}).get(text(owner, "uid"), {"metadata": {}})
        local, holder = queue_of(parked) or "", holder_of(parked)
    queue = view.cluster_queue or cluster_queues.get((view.key[0], local), "")
    state, since_s, message = _state(document)
    if view.queue == PARKED and state is State.WAITING:
        state, message = State.HELD, ""
    return Queued(
        view.key[0], text(owner, "name") or view.key[1], text(owner, "kind") or "Workload", view.uid,
        text(owner, "uid"), view.key[1], System.KUEUE, local, queue or f"{view.key[0]}/{local}", view.priority,
        gpus, state, view.created_s, _ordered_s(document, view.created_s), since_s, holder, message,
        frozenset(flavor for flavor, _ in view.uses), cover=view.cover,
    )  # fmt: skip


def lines(found: Iterable[Queued], pools: Sequence[PoolState] = (), pods: Iterable[Object] = (),
          now_s: float = 0.0) -> list[Queued]:  # fmt: skip
    """By queue and in its order: what runs, then what waits with its position, then what is held or stopped."""
    risks = _risks(pods, now_s)
    placed = [_placed(one, pools, risks) for one in found]
    placed.sort(key=_order)
    numbers: dict[str, int] = {}
    for index, one in enumerate(placed):
        if one.state is State.WAITING:
            numbers[one.queue] = numbers.get(one.queue, 0) + 1
            placed[index] = replace(one, position=numbers[one.queue])
    return placed


def _order(one: Queued) -> tuple[Any, ...]:
    stage = list(State).index(one.state)
    if one.system is not System.KUEUE:
        return one.queue, stage, 0, one.created_s, one.full_name
    return one.queue, stage, -(one.priority or 0), one.ordered_s, one.full_name


def _placed(one: Queued, pools: Sequence[PoolState], risks: Mapping[str, float]) -> Queued:
    has_gpus = one.state in (State.RUNNING, State.STARTING, State.EVICTING)
    names = (one.queue, one.local_queue, f"{one.namespace}/{one.local_queue}")
    pool = next((pool.name for pool in pools if has_gpus and pool.lends_to(names, one.flavors)), "")
    risk = risks.get(f"{one.namespace}/{one.workload}", risks.get(one.owner_uid or one.uid))
    return replace(one, pool=pool, risk_gpu_s=risk if has_gpus else None)


def unqueued(pods: Iterable[Object], now_s: float, owners: frozenset[str] = frozenset()) -> list[Queued]:
    """Gangs and pods with GPUs that Kueue does not know: KAI's, Volcano's, and those of no queue at all.

    ``owners`` are uids of what Kueue's Workloads belong to.
    """
    found: dict[str, list[tuple[Object, PodView]]] = {}
    for pod in pods:
        try:
            view = pod_view(pod)
        except (KeyError, ValueError, TypeError, AttributeError):
            continue
        if view is None or view.ended or view.system is System.KUEUE or _is_kueues(pod):
            continue
        if view.owner is None or view.owner.uid not in owners:
            # A gang of KAI's may have pods of several owners.
            gang = f"{view.key[0]}/{view.group}" if view.group else anchor(view)
            found.setdefault(gang, []).append((pod, view))
    return [_gang(members, now_s) for members in found.values()]


def _is_kueues(pod: Object) -> bool:
    """Kueue labels the pods of what it lets run."""
    labels = mapping(pod, "metadata", "labels")
    return "kueue.x-k8s.io/podset" in labels or "kueue.x-k8s.io/workload" in mapping(pod, "metadata", "annotations")


def _gang(members: Sequence[tuple[Object, PodView]], now_s: float) -> Queued:
    pod, view = members[0]
    queue = text(pod, "metadata", "labels", _KAI_QUEUE) or text(pod, "metadata", "annotations", _VOLCANO_QUEUE)
    waiting = [one for one, _ in members if not text(one, "spec", "nodeName")]
    running = [view.started_at_s for _, view in members if view.started_at_s is not None]
    gates = [text(gate, "name") for one in waiting for _, gate in items(one, "spec", "schedulingGates")]
    state, since_s, message = State.RUNNING, max(running, default=None), ""
    if any(one.deleted_at_s is not None for _, one in members):
        state, since_s = State.EVICTING, min(one.deleted_at_s for _, one in members if one.deleted_at_s is not None)
    elif waiting:
        scheduled = condition(waiting[0], "PodScheduled")
        state, message = State.HELD if gates else State.WAITING, text(scheduled, "message")
        since_s = turned_s(scheduled) or seconds(text(waiting[0], "metadata", "creationTimestamp"))
    elif len(running) < len(members):
        state, since_s = State.STARTING, None
    created_s = min((seconds(text(one, "metadata", "creationTimestamp")) or now_s for one, _ in members), default=now_s)
    owner, priority = view.owner, at(pod, "spec", "priority")
    return Queued(
        view.key[0], owner.name if owner else view.key[1], owner.kind if owner else "Pod", view.uid,
        owner.uid if owner else "", view.group, view.system, queue,
        queue or f"{view.system.value if view.system is not System.NONE else 'no'} queue",
        priority if isinstance(priority, int) else None, sum(one.gpus for _, one in members), state, created_s,
        created_s, since_s, holder_of(pod) or ("a scheduling gate" if gates else ""), message,
    )  # fmt: skip


def _gpus(document: Object) -> int:
    return sum(
        count(one, "count") * gpus_of(mapping(one, "template", "spec"), mapping(one, "template", "metadata",
                                                                                "annotations"))
        for _, one in items(document, "spec", "podSets")
    )  # fmt: skip


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
    created_s = seconds(text(document, "metadata", "creationTimestamp"))
    since_s = turned_s(evicted) if is_true(evicted) else turned_s(reserved) or created_s
    if holder_of(document):
        return State.HELD, since_s, text(reserved, "message")
    if at(document, "spec", "active") is False:
        return State.STOPPED, turned_s(evicted) or created_s, text(evicted, "message")
    return State.WAITING, since_s, text(reserved, "message")


def _checks(document: Object) -> str:
    """What admission checks that are not through say."""
    found = [f"{text(one, 'name')} is {text(one, 'state').lower() or 'pending'}"
             + (f" ({text(one, 'message')})" if text(one, "message") else "")
             for _, one in items(document, "status", "admissionChecks") if text(one, "state") != "Ready"]  # fmt: skip
    return f"admission checks: {', '.join(found)}" if found else ""


def _ordered_s(document: Object, created_s: float) -> float:
    evicted = condition(document, "Evicted")
    if is_true(evicted) and text(evicted, "reason") in ("PodsReadyTimeout", "AdmissionCheck"):
        return turned_s(evicted) or created_s
    return created_s


def _risks(pods: Iterable[Object], now_s: float) -> dict[str, float]:
    """GPU-seconds at risk by gang and by owner, as log agents tell: each pod carries that of its whole job."""
    found: dict[str, float] = {}
    for pod in pods:
        notes = mapping(pod, "metadata", "annotations")
        told_s, written = seconds(text(notes, _OBSERVED)), text(notes, _RISK)
        if told_s is None or now_s - told_s > _STALE_S or not (written.isascii() and written.isdigit()):
            continue
        risk = float(written[:15])
        owner = next((text(one, "uid") for _, one in items(pod, "metadata", "ownerReferences")
                      if at(one, "controller") is True), text(pod, "metadata", "uid"))  # fmt: skip
        workload = text(notes, "kueue.x-k8s.io/workload")
        for key in (owner, f"{text(pod, 'metadata', 'namespace')}/{workload}" if workload else ""):
            if key:
                found[key] = max(found.get(key, 0.0), risk)
    return found
