"""The state of a job in its queue: quota, position, workloads ahead, what blocks it; then its scheduler's messages."""

from collections.abc import Iterator
from typing import Any

from kopt.cluster.holds.hold import PARKED, holder_of
from kopt.cluster.objects.conditions import condition, turned_s
from kopt.cluster.objects.fields import at, items, mapping, text
from kopt.cluster.workloads.kueue.objects import ClusterQueue
from kopt.cluster.workloads.kueue.queues import read_cluster_queue
from kopt.cluster.workloads.requests.gpus import gpus_in, milli_of
from kopt.controllers.overview.findings import order as ranks
from kopt.controllers.overview.job import Finding, JobSnapshot
from kopt.controllers.overview.text import gpus, listed, ordinal, sentence, since
from kopt.core.scheduling.queued import Queued, State
from kopt.core.times import seconds_or_none
from kopt.core.units import format_gpus

_MOST_AHEAD = 3
_WAIT_ADVICE = (
    "Nothing has to be done: it starts when its turn comes. It starts sooner with fewer GPUs or a higher priority."
)


def queue(job: JobSnapshot) -> Iterator[Finding]:
    """Of Kueue: the queue that it names, its position there, and Kueue's own message."""
    if not job.queue:
        return
    yield from _queue_itself(job)
    for queued in job.own:
        if queued.state is State.PENDING:
            yield _position(queued, job)
        elif queued.state is State.STOPPED:
            yield _stopped(queued, job)
        elif queued.state is State.STARTING and queued.message.startswith("admission checks"):
            yield Finding(
                ranks.CHECKS,
                "ADMISSION_CHECKS",
                f"It has quota, and waits for {queued.message}.",
                f"Workload {queued.namespace}/{queued.workload}",
                queued.since_s,
                "See the controllers of these checks.",
            )
    if not job.workloads and job.has_kueue and not _has_begun(job):
        yield _no_workload(job)


def scheduler(job: JobSnapshot) -> Iterator[Finding]:
    """Pods without a node, with their scheduler's message; scheduling gates; gangs that do not fit."""
    yield from _groups(job)
    unplaced = [pod for pod in job.pods if not text(pod, "spec", "nodeName") and _is_alive(pod)]
    by_message: dict[str, list[Any]] = {}
    for pod in unplaced:
        gates = [text(gate, "name") for _, gate in items(pod, "spec", "schedulingGates")]
        scheduled = condition(pod, "PodScheduled")
        # Equal messages of several pods are reported once; pods held by our own gates are reported elsewhere.
        key = f"gates: {listed(sorted(gates))}" if gates else sentence(text(scheduled, "message"))
        if not (gates and holder_of(pod)):
            by_message.setdefault(key, []).append(pod)
    for message, pods in sorted(by_message.items(), key=lambda item: -len(item[1])):
        yield _unplaced(message, pods, len(job.pods), job.now_s)


def no_pods(job: JobSnapshot) -> Iterator[Finding]:
    """A job that is let run, and whose controller has made no pods."""
    root = job.root.document
    if job.pods or not _is_job(job) or any(queued.state is not State.RUNNING for queued in job.own):
        return
    suspended = at(root, "spec", "suspend") is True
    if suspended and not job.queue and not holder_of(root):
        since_s = turned_s(condition(root, "Suspended"))
        yield Finding(
            ranks.NO_QUEUE,
            "SUSPENDED",
            f"It is suspended (spec.suspend){since(since_s, job.now_s)}, is "
            "in no queue, and none of our controllers holds it: its owner has stopped it.",
            job.root.label,
            since_s,
            f"kubectl -n {job.root.key[0]} patch job {job.root.key[1]} --type merge -p "
            '\'{"spec":{"suspend":false}}\'',
        )
    elif not suspended:
        failure = condition(root, "FailureTarget")
        why = sentence(text(failure, "message")) or "Quotas and admission webhooks of its namespace can refuse pods."
        yield Finding(
            ranks.SCHEDULER,
            "NO_PODS",
            f"It may run, and no pod of it has been made. {why}",
            job.root.label,
            next=f"kubectl -n {job.root.key[0]} describe {job.root.resource.plural} {job.root.key[1]}",
        )


def _queue_itself(job: JobSnapshot) -> Iterator[Finding]:
    name = f"LocalQueue {job.root.key[0]}/{job.queue}"
    if job.queue == PARKED:
        return
    if not job.has_kueue:
        yield Finding(
            ranks.NO_QUEUE,
            "NO_KUEUE",
            f"It names the queue {job.queue}, and Kueue is not installed here: it will never start.",
            job.root.label,
            next="Install Kueue, or take the label kueue.x-k8s.io/queue-name and spec.suspend away.",
        )
    elif job.local_queue is None:
        if "localqueues" not in job.unread:
            yield Finding(
                ranks.NO_QUEUE,
                "QUEUE_UNKNOWN",
                f"It names the queue {job.queue}, which does not exist in its namespace: it will never start.",
                job.root.label,
                next=f"kubectl -n {job.root.key[0]} get localqueues lists those there are.",
            )
    else:
        # A LocalQueue only repeats what is wrong with the queue behind it.
        behind = job.cluster_queue or {}
        findings = [*_is_open(behind, f"ClusterQueue {text(behind, 'metadata', 'name')}", job)]
        yield from findings or _is_open(job.local_queue, name, job)


def _is_open(document: Any, name: str, job: JobSnapshot) -> Iterator[Finding]:
    active, stop = condition(document, "Active"), text(document, "spec", "stopPolicy")
    if stop not in ("", "None"):
        yield Finding(
            ranks.NO_QUEUE,
            "QUEUE_STOPPED",
            f"{name} is stopped (stopPolicy: {stop}); it admits nothing.",
            name,
            next="An administrator of the queues has to open it again.",
        )
    elif text(active, "status") == "False":
        yield Finding(
            ranks.NO_QUEUE,
            "QUEUE_INACTIVE",
            f"{name} is not active{since(turned_s(active), job.now_s)}: {sentence(text(active, 'message'))}",
            name,
            turned_s(active),
            "An administrator of the queues has to complete it.",
        )


def _position(queued: Queued, job: JobSnapshot) -> Finding:
    in_queue = [other for other in job.queued if other.queue == queued.queue and other.state is State.PENDING]
    ahead = [other for other in in_queue if other.position is not None and other.position < (queued.position or 0)]
    summary = (
        f"It asks for {gpus(queued.gpus)} and waits in ClusterQueue {queued.queue}{since(queued.since_s, job.now_s)}"
    )
    summary += f", {ordinal(queued.position or 1)} of {len(in_queue)}"
    if "workloads" in job.unread or _is_narrow(job):
        summary += " that you may read"
    summary += f" with priority {queued.priority}" if queued.priority is not None else ""
    summary += ", in an order by class, age and GPUs." if queued.order is not None else "."
    if ahead:
        summary += f" Ahead: {listed([_brief(other) for other in ahead], _MOST_AHEAD)}."
    summary += _quota(queued, job)
    if queued.message:
        summary += f" Kueue: {sentence(queued.message)}"
    # A Workload that Kueue has not handled yet has no condition.
    return Finding(
        ranks.QUEUE,
        "QUEUED",
        summary,
        f"Workload {queued.namespace}/{queued.workload}",
        queued.since_s,
        _next(queued, job),
    )


def _is_narrow(job: JobSnapshot) -> bool:
    """Whether other namespaces may not be read: then a position is only one among its own namespace's."""
    return any(name.startswith("workloads of") for name in job.unread)


def _brief(queued: Queued) -> str:
    return f"{queued.full_name} ({gpus(queued.gpus)}, priority {queued.priority})"


def _quota(queued: Queued, job: JobSnapshot) -> str:
    """What its queue has and what is taken of it, in GPUs; flavour by flavour where it has several."""
    if job.cluster_queue is None:
        return ""
    cluster_queue = read_cluster_queue(job.cluster_queue)
    total = _gpu_quota(cluster_queue)
    if not total:
        return ""
    users = [
        other
        for other in job.queued
        if other.queue == queued.queue and other.state in (State.RUNNING, State.STARTING, State.EVICTING)
    ]
    more = " It asks for more than the queue has." if queued.gpus > total and not cluster_queue.cohort else ""
    names = list(dict.fromkeys(flavor for flavor, resource in cluster_queue.quota if milli_of(resource, 1)))
    if len(names) == 1:
        used = format_gpus(sum(other.gpus for other in users))
        return f" The queue has {gpus(total)}, {used} of them in use{_cohort(cluster_queue, names[0])}.{more}"
    parts = [
        f"{gpus(_gpu_quota(cluster_queue, name))} of flavor {name}, "
        f"{format_gpus(sum(other.gpus for other in users if name in other.flavors))} in use"
        f"{_cohort(cluster_queue, name)}"
        for name in names
    ]
    return f" The queue has {'; '.join(parts)}.{more}"


def _cohort(cluster_queue: ClusterQueue, flavor: str) -> str:
    """How far it may use quota of its cohort's others."""
    if not cluster_queue.cohort:
        return ""
    limits = [
        None if quota.borrowing_limit is None else gpus_in(resource, quota.borrowing_limit)
        for (name, resource), quota in cluster_queue.quotas.items()
        if name == flavor and milli_of(resource, 1)
    ]
    if None in limits:
        return f"; it may borrow in cohort {cluster_queue.cohort}"
    limit = sum(limit for limit in limits if limit)
    if not limit:
        return f"; it may borrow none in cohort {cluster_queue.cohort}"
    return f"; it may borrow {gpus(limit)} in cohort {cluster_queue.cohort}"


def _gpu_quota(cluster_queue: ClusterQueue, flavor: str = "") -> int:
    """Its GPUs, of all flavours if none is given."""
    return sum(
        gpus_in(resource, amount) for (name, resource), amount in cluster_queue.quota.items() if flavor in ("", name)
    )


def _next(queued: Queued, job: JobSnapshot) -> str:
    cluster_queue = read_cluster_queue(job.cluster_queue) if job.cluster_queue is not None else None
    total = _gpu_quota(cluster_queue) if cluster_queue is not None else 0
    if cluster_queue is not None and total and queued.gpus > total and not cluster_queue.cohort:
        return f"Ask for at most {gpus(total)}, or submit it to a larger queue: here it can never start."
    return _WAIT_ADVICE


def _stopped(queued: Queued, job: JobSnapshot) -> Finding:
    why = f" Kueue: {sentence(queued.message)}" if queued.message else ""
    return Finding(
        ranks.NO_QUEUE,
        "DEACTIVATED",
        f"Its Workload is deactivated (spec.active: false)"
        f"{since(queued.since_s, job.now_s)}, and none of our controllers holds it.{why}",
        f"Workload {queued.namespace}/{queued.workload}",
        queued.since_s,
        f"kubectl -n {queued.namespace} patch workload {queued.workload} --type merge "
        f'-p \'{{"spec":{{"active":true}}}}\'',
    )


def _no_workload(job: JobSnapshot) -> Finding:
    created_s = seconds_or_none(text(job.root.document, "metadata", "creationTimestamp"))
    return Finding(
        ranks.QUEUE,
        "NO_WORKLOAD",
        f"It names the queue {job.queue}, and Kueue has made no Workload for it yet.",
        job.root.label,
        created_s,
        "If that lasts: does Kueue manage this kind (integrations.frameworks), and its namespace?",
    )


def _has_begun(job: JobSnapshot) -> bool:
    return any(text(pod, "spec", "nodeName") for pod in job.pods)


def _groups(job: JobSnapshot) -> Iterator[Finding]:
    for thing in job.groups:
        result = [
            *items(thing.document, "status", "schedulingConditions"),
            *items(thing.document, "status", "conditions"),
        ]
        for _, item in result:
            if not text(item, "type").startswith("Unschedulable") or text(item, "status") == "False":
                continue
            reasons = [text(reason, "message") for _, reason in items(item, "reasons")]
            message = text(item, "message") or " ".join(filter(None, reasons)) or text(item, "reason")
            if message and any(not text(pod, "spec", "nodeName") for pod in job.pods):
                yield Finding(
                    ranks.SCHEDULER,
                    "GANG_UNSCHEDULABLE",
                    f"Its gang does not fit: {sentence(message)}",
                    thing.label,
                    turned_s(mapping(item)),
                    _WAIT_ADVICE,
                )
                return


def _unplaced(message: str, pods: list[Any], total: int, now_s: float) -> Finding:
    name, scheduler_ = text(pods[0], "metadata", "name"), text(pods[0], "spec", "schedulerName") or "default-scheduler"
    stamps = [turned_s(condition(pod, "PodScheduled")) for pod in pods]
    since_s = min((stamp for stamp in stamps if stamp is not None), default=None)
    how_many = f"{len(pods)} of its {total} pods have" if total > 1 else "Its pod has"
    if message.startswith("gates: "):
        return Finding(
            ranks.SCHEDULER,
            "GATED",
            f"{how_many} scheduling gates ({message[7:]}); no scheduler looks at them until their owner removes them.",
            f"Pod {name}",
            since_s,
        )
    summary = f" {scheduler_}: {message}" if message else f" {scheduler_} has not reported anything yet."
    next_ = (
        "Is a scheduler of this name running?"
        if not message
        else "The nodes that it may use are full or do not match: `kopt queue` shows what runs there."
    )
    return Finding(
        ranks.SCHEDULER,
        "UNSCHEDULABLE",
        f"{how_many} no node{since(since_s, now_s)}.{summary}",
        f"Pod {name}",
        since_s,
        next_,
    )


def _is_alive(pod: Any) -> bool:
    return (
        text(pod, "status", "phase") not in ("Succeeded", "Failed") and at(pod, "metadata", "deletionTimestamp") is None
    )


def _is_job(job: JobSnapshot) -> bool:
    return job.root.resource.kind == "Job" and job.root.resource.group == "batch"
