"""The diagnosis of a job: its scheduler, what binds by the scheduler's words and by our own what-if, and what helps."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from kopt.cluster.client.resources import KAI_POD_GROUPS, Object
from kopt.cluster.objects.conditions import condition, turned_s
from kopt.cluster.objects.fields import at, count, items, mapping, text
from kopt.cluster.workloads.kueue.objects import KueueWorkload
from kopt.cluster.workloads.runs import kind_of_pods
from kopt.cluster.workloads.scheduler_messages import causes_in
from kopt.controllers.overview.diagnosis.books import ClusterBooks, is_preemptible, is_unplaced
from kopt.controllers.overview.diagnosis.claims import claim_causes
from kopt.controllers.overview.diagnosis.kueue import ahead_of, flavors_of, other_sides, pod_set_templates, side_of
from kopt.controllers.overview.diagnosis.patches import patched
from kopt.controllers.overview.diagnosis.pod_shapes import (
    pool_of,
    requests_of_templates,
    shape_of,
    templates_of,
)
from kopt.controllers.overview.diagnosis.queue_limits import (
    kai_ceilings,
    volcano_ceilings,
    with_lineage,
)
from kopt.controllers.overview.diagnosis.starts import RunTimes, start_of
from kopt.controllers.overview.job import Finding, JobSnapshot, Thing
from kopt.core.scheduling.diagnosis import Binding, Cause, Change, Diagnosis, StartEstimate
from kopt.core.scheduling.queued import Queued, State
from kopt.policies.diagnosis import Ceiling, RunTimeColumns, Situation, binding_constraints, smallest_changes
from kopt.policies.placement.pool import Pool
from kopt.policies.placement.state import FleetState

KUEUE, KAI, VOLCANO, KUBE = "Kueue", "KAI", "Volcano", "kube-scheduler"
_BLOCKING = frozenset(
    {
        "ADMISSION_CHECKS",
        "DEACTIVATED",
        "GATED",
        "NO_KUEUE",
        "QUEUE_INACTIVE",
        "QUEUE_STOPPED",
        "QUEUE_UNKNOWN",
        "SUSPENDED",
    }
)
"""Findings of ``kopt why`` that no free GPU would cure."""
_NOT_MODELLED = frozenset(
    {
        Binding.CLAIM_MISSING,
        Binding.CLAIM_UNALLOCATED,
        Binding.GANG_INCOMPLETE,
        Binding.POD_AFFINITY,
        Binding.POD_ANTI_AFFINITY,
        Binding.PORT_IN_USE,
        Binding.TOPOLOGY_SPREAD,
        Binding.VOLUME,
    }
)
"""What only the scheduler's message says."""


@dataclass(frozen=True)
class Pending:
    """The part of a job that waits: for quota as a Workload, or for nodes as pods."""

    scheduler: str
    situation: Situation
    messages: tuple[str, ...]
    since_s: float | None
    causes: tuple[Cause, ...] = ()
    preemption: tuple[Cause, ...] = ()
    workload: KueueWorkload | None = None
    uid: str = ""
    queue: str = ""


def diagnose(
    job: JobSnapshot,
    books: ClusterBooks,
    findings: Sequence[Finding] = (),
    run_times: RunTimes | None = None,
) -> Diagnosis | None:
    """None for a job that does not wait for a queue or a node. ``run_times`` are predicted elsewhere; with None no
    start is asked for. Nothing in the objects makes this raise."""
    blocked = tuple(_blocking(findings))
    pending = _pending(job, books)
    if pending is None:
        return None if not blocked else Diagnosis(_name(job), _scheduler(job), blocked)
    causes = blocked or _causes(pending)
    changes: tuple[Change, ...] = ()
    estimate = StartEstimate()
    if not blocked and all(cause.code is not Binding.GANG_INCOMPLETE for cause in causes):
        columns = RunTimeColumns.of(run_times or {})
        changes = tuple(patched(change, job) for change in smallest_changes(pending.situation, columns.medians_s))
        if run_times is not None:
            estimate = start_of(pending, _name(job), job.queued, books, columns)
    since = tuple(replace(cause, since_s=pending.since_s) if cause.since_s is None else cause for cause in causes)
    unread = books.documents.unread
    return Diagnosis(_name(job), pending.scheduler, since, changes, estimate, unread, pending.uid, pending.queue)


def _blocking(findings: Sequence[Finding]) -> Iterator[Cause]:
    for finding in findings:
        if finding.code in _BLOCKING:
            yield Cause(Binding(finding.code), finding.message, about=finding.about, since_s=finding.since_s)
        elif finding.code == "HELD" or finding.code.startswith("HELD_"):
            yield Cause(Binding.HELD, finding.message, about=finding.about, since_s=finding.since_s)


def _causes(pending: Pending) -> tuple[Cause, ...]:
    """What the objects say first; our own what-if, which has the amounts; then what only a message knows."""
    computed = binding_constraints(pending.situation) if pending.situation.shapes else ()
    reported = tuple(cause for message in pending.messages for cause in causes_in(message))
    fits_now = not computed or computed[0].code is Binding.FITS_NOW
    if pending.situation.fleet is None and pending.situation.kueue is None and fits_now:
        # Without nodes there is nothing to check the scheduler's words against.
        pending_codes = {cause.code for cause in pending.causes}
        return (*pending.causes, *(cause for cause in reported or computed if cause.code not in pending_codes))
    others = [cause for cause in reported if cause.code in _NOT_MODELLED]
    codes = {cause.code for cause in (*pending.causes, *computed)}
    others = [cause for cause in others if cause.code not in codes]
    if fits_now and (pending.causes or others):
        return (*pending.causes, *others)
    limits = [cause for cause in reported if cause.code in (Binding.QUEUE_LIMIT, Binding.QUEUE_QUOTA)]
    if fits_now and limits:
        return tuple(limits)
    if fits_now:
        # Whoever is right, both are said.
        others += [cause for cause in reported if cause.code not in _NOT_MODELLED]
    return (*pending.causes, *computed, *others, *pending.preemption)


def _pending(job: JobSnapshot, books: ClusterBooks) -> Pending | None:
    for queued in job.own:
        if queued.state is State.PENDING:
            return _of_kueue(job, queued, books)
    pods = [pod for pod in job.pods if _is_alive(pod)]
    unplaced_pods = [pod for pod in pods if is_unplaced(pod)]
    groups = [group for group in job.groups if _belongs(group, pods) or not pods]
    if not unplaced_pods and not (groups and not pods):
        return None
    return _of_pods(job, pods, unplaced_pods, groups, books)


def _of_kueue(job: JobSnapshot, queued: Queued, books: ClusterBooks) -> Pending | None:
    workload = books.workloads.get((queued.namespace, queued.workload))
    if workload is None or "workloads" in books.documents.unread:
        return Pending(KUEUE, Situation(()), (queued.message,), queued.since_s, uid=queued.uid, queue=queued.queue)
    requests = requests_of_templates(pod_set_templates(workload.document, workload))
    pool, queue = pool_of(requests, books), books.cluster_queues.get(queued.queue)
    flavors = flavors_of(queue) if queue is not None else ()
    shapes = tuple(
        shape_of(template, ask, queued.namespace, books, pool, flavors)
        for template, ask in requests
        if pool is not None
    )
    ahead = ahead_of(queued, job.queued)
    side = side_of(workload, queued.queue, books, pool, ahead, len(ahead) + 1)
    others = other_sides(workload, queued.local_queue, books, pool, job.queued)
    situation = Situation(
        shapes,
        _fleet(pool, books),
        side,
        running=books.running(pool) if pool is not None else (),
        queues=others,
        held=books.held(pool) if pool is not None else None,
        columns=books.columns(pool) if pool is not None else None,
    )
    message = text(condition(workload.document, "QuotaReserved"), "message")
    return Pending(KUEUE, situation, (message,), queued.since_s, workload=workload, uid=queued.uid, queue=queued.queue)


def _of_pods(
    job: JobSnapshot,
    pods: Sequence[Object],
    unplaced_pods: Sequence[Object],
    groups: Sequence[Thing],
    books: ClusterBooks,
) -> Pending:
    group, namespace = (groups[0] if groups else None), job.root.key[0]
    minimum = (
        max(
            count(group.document, "spec", "minMember", default=1),
            count(group.document, "spec", "minAvailable", default=1),
        )
        if group
        else 1
    )
    placed = len(pods) - len(unplaced_pods)
    templates = templates_of(unplaced_pods, max(1, minimum - placed))
    requests = requests_of_templates(templates)
    pool = pool_of(requests, books)
    shapes = tuple(shape_of(template, ask, namespace, books, pool) for template, ask in requests if pool is not None)
    scheduler = _scheduler(job)
    queue = text(group.document, "spec", "queue") if group else ""
    queue = queue or next((name for pod in unplaced_pods if (name := books.queue_of(pod))), "")
    running = books.running(pool) if pool is not None else ()
    ceilings: tuple[Ceiling, ...] = ()
    if scheduler == KAI:
        ceilings = kai_ceilings(queue, books, preemptible=all(map(is_preemptible, unplaced_pods)))
        documents = {text(item, "metadata", "name"): item for item in books.documents.kai_queues}
        running = tuple(with_lineage(workload, documents, "parentQueue") for workload in running)
    elif scheduler == VOLCANO:
        ceilings = volcano_ceilings(queue, books)
        documents = {text(item, "metadata", "name"): item for item in books.documents.volcano_queues}
        running = tuple(with_lineage(workload, documents, "parent") for workload in running)
    fleet = _fleet(pool, books)
    situation = Situation(
        shapes,
        fleet,
        None,
        ceilings if books.is_whole else (),
        running,
        held=books.held(pool) if pool is not None else None,
        # With the queues above theirs they are others than those of the books.
        columns=books.columns(pool) if pool is not None and running is books.running(pool) else None,
    )
    causes = [*_gang(len(pods), minimum, group), *claim_causes(unplaced_pods, books)]
    kind = kind_of_pods(unplaced_pods, job.root.key[1])
    return Pending(
        scheduler,
        situation,
        tuple(_messages(unplaced_pods, groups, books)),
        _since_s(unplaced_pods, groups),
        tuple(causes),
        tuple(_nominated(unplaced_pods)),
        uid=job.root.uid,
        queue=kind.queue if kind is not None else namespace,
    )


def _fleet(pool: Pool | None, books: ClusterBooks) -> FleetState | None:
    """None where nodes or the pods on them may not be read: what is free is not known then."""
    return pool.state if pool is not None and books.is_whole else None


def _gang(pods: int, minimum: int, group: Thing | None) -> Iterator[Cause]:
    if group is not None and pods < minimum:
        message = f"Its gang needs {minimum} pods to start together, and {pods} exist."
        yield Cause(Binding.GANG_INCOMPLETE, message, minimum, pods, "pods", group.label)


def _nominated(pods: Sequence[Object]) -> Iterator[Cause]:
    """Room that kube-scheduler is making on a node."""
    names = dict.fromkeys(name for pod in pods if (name := text(pod, "status", "nominatedNodeName")))
    for name in names:
        message = f"kube-scheduler preempts pods on node {name} for it; it starts when they have ended."
        yield Cause(Binding.PREEMPTS, message, about=name)


def _messages(pods: Sequence[Object], groups: Sequence[Thing], books: ClusterBooks) -> Iterator[str]:
    """The schedulers' words, the newest first where they are events."""
    names = {text(pod, "metadata", "uid") for pod in pods} | {group.uid for group in groups}
    events = [
        event
        for event in books.documents.events
        if text(event, "regarding", "uid") in names and text(event, "reason") in ("FailedScheduling", "Unschedulable")
    ]
    listed = [text(condition(pod, "PodScheduled"), "message") for pod in pods]
    for group in groups:
        for _, item in (
            *items(group.document, "status", "schedulingConditions"),
            *items(group.document, "status", "conditions"),
        ):
            if text(item, "type").startswith("Unschedulable") and text(item, "status") != "False":
                listed += [text(item, "message"), *(text(part, "message") for _, part in items(item, "reasons"))]
    events.sort(key=lambda event: text(event, "eventTime"), reverse=True)
    listed += [text(event, "note") for event in events]
    yield from dict.fromkeys(message for message in listed if message)


def _since_s(pods: Sequence[Object], groups: Sequence[Thing]) -> float | None:
    stamps = [turned_s(condition(pod, "PodScheduled")) for pod in pods]
    stamps += [
        turned_s(mapping(item))
        for group in groups
        for _, item in items(group.document, "status", "conditions")
        if text(item, "type") == "Unschedulable"
    ]
    return min((stamp for stamp in stamps if stamp is not None), default=None)


def _scheduler(job: JobSnapshot) -> str:
    if any(queued.state is State.PENDING for queued in job.own) or (job.queue and not job.pods):
        return KUEUE
    for group in job.groups:
        return KAI if group.resource.group == KAI_POD_GROUPS.group else VOLCANO
    names = {text(pod, "spec", "schedulerName") for pod in job.pods}
    if any("kai" in name for name in names):
        return KAI
    return VOLCANO if "volcano" in names else KUBE


def _belongs(group: Thing, pods: Sequence[Object]) -> bool:
    return any(text(pod, "metadata", "namespace") == group.key[0] for pod in pods)


def _is_alive(pod: Object) -> bool:
    return (
        text(pod, "status", "phase") not in ("Succeeded", "Failed") and at(pod, "metadata", "deletionTimestamp") is None
    )


def _name(job: JobSnapshot) -> str:
    return "/".join(job.root.key)
