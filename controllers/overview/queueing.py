"""What a job's queue says: quota, position, who is ahead, what keeps it out; and what its scheduler says after that."""

from collections.abc import Iterator
from typing import Any

from kopt.cluster.held import PARKED, holder_of
from kopt.controllers.overview import ranks
from kopt.controllers.overview.facts import Facts, Finding
from kopt.controllers.overview.queues import Queued, State, condition, turned_s
from kopt.controllers.overview.words import gpus, listed, ordinal, sentence, since
from kopt.controllers.preemption.reading import cluster_queue_view, seconds
from kopt.controllers.preemption.views import ClusterQueueView
from kopt.controllers.webhook.gpus import milli_of
from kopt.controllers.webhook.objects import at, items, mapping, text
from kopt.core.units import format_gpus

_MOST_AHEAD = 3
_ASK = "Nothing has to be done: it starts when its turn comes. Fewer GPUs, or a higher priority, bring it on."


def queue(facts: Facts) -> Iterator[Finding]:
    """Of Kueue: the queue that it names, its place there, and Kueue's own words."""
    if not facts.queue:
        return
    yield from _queue_itself(facts)
    for one in facts.own:
        if one.state is State.WAITING:
            yield _position(one, facts)
        elif one.state is State.STOPPED:
            yield _stopped(one, facts)
        elif one.state is State.STARTING and one.message.startswith("admission checks"):
            yield Finding(ranks.CHECKS, "ADMISSION_CHECKS", f"It has quota, and waits for {one.message}.",
                          f"Workload {one.namespace}/{one.workload}", one.since_s,
                          "See the controllers of these checks.")  # fmt: skip
    if not facts.workloads and facts.has_kueue and not _has_begun(facts):
        yield _no_workload(facts)


def scheduler(facts: Facts) -> Iterator[Finding]:
    """Pods that nobody has given a node, in the words of their scheduler; gates; gangs that do not fit."""
    yield from _groups(facts)
    waiting = [pod for pod in facts.pods if not text(pod, "spec", "nodeName") and _is_alive(pod)]
    said: dict[str, list[Any]] = {}
    for pod in waiting:
        gates = [text(gate, "name") for _, gate in items(pod, "spec", "schedulingGates")]
        scheduled = condition(pod, "PodScheduled")
        # The number of nodes is said of each pod anew; whoever holds it by a gate of ours is told elsewhere.
        key = f"gates: {listed(sorted(gates))}" if gates else sentence(text(scheduled, "message"))
        if not (gates and holder_of(pod)):
            said.setdefault(key, []).append(pod)
    for message, pods in sorted(said.items(), key=lambda one: -len(one[1])):
        yield _unplaced(message, pods, len(facts.pods), facts.now_s)


def no_pods(facts: Facts) -> Iterator[Finding]:
    """A job that is let run, and whose controller has made no pods."""
    root = facts.root.document
    if facts.pods or not _is_job(facts) or any(one.state is not State.RUNNING for one in facts.own):
        return
    suspended = at(root, "spec", "suspend") is True
    if suspended and not facts.queue and not holder_of(root):
        since_s = turned_s(condition(root, "Suspended"))
        yield Finding(ranks.NO_QUEUE, "SUSPENDED", f"It is suspended (spec.suspend){since(since_s, facts.now_s)}, is "
                      "in no queue, and nobody of ours holds it: its owner has stopped it.", facts.root.label, since_s,
                      f"kubectl -n {facts.root.key[0]} patch job {facts.root.key[1]} --type merge -p "
                      "'{\"spec\":{\"suspend\":false}}'")  # fmt: skip
    elif not suspended:
        failure = condition(root, "FailureTarget")
        why = sentence(text(failure, "message")) or "Quotas and admission webhooks of its namespace can refuse pods."
        yield Finding(ranks.SCHEDULER, "NO_PODS", f"It may run, and no pod of it has been made. {why}",
                      facts.root.label, next=f"kubectl -n {facts.root.key[0]} describe {facts.root.resource.plural} "
                      f"{facts.root.key[1]}")  # fmt: skip


def _queue_itself(facts: Facts) -> Iterator[Finding]:
    name = f"LocalQueue {facts.root.key[0]}/{facts.queue}"
    if facts.queue == PARKED:
        return
    if not facts.has_kueue:
        yield Finding(ranks.NO_QUEUE, "NO_KUEUE", f"It names the queue {facts.queue}, and Kueue is not installed here: "
                      "nobody will start it.", facts.root.label, next="Install Kueue, or take the label "
                      "kueue.x-k8s.io/queue-name and spec.suspend away.")  # fmt: skip
    elif facts.local_queue is None:
        if "localqueues" not in facts.unread:
            yield Finding(ranks.NO_QUEUE, "QUEUE_UNKNOWN", f"It names the queue {facts.queue}, which does not exist in "
                          "its namespace: nobody will start it.", facts.root.label,
                          next=f"kubectl -n {facts.root.key[0]} get localqueues lists those there are.")  # fmt: skip
    else:
        # A LocalQueue only repeats what is wrong with the queue behind it.
        behind = facts.cluster_queue or {}
        found = [*_is_open(behind, f"ClusterQueue {text(behind, 'metadata', 'name')}", facts)]
        yield from found or _is_open(facts.local_queue, name, facts)


def _is_open(document: Any, name: str, facts: Facts) -> Iterator[Finding]:
    active, stop = condition(document, "Active"), text(document, "spec", "stopPolicy")
    if stop not in ("", "None"):
        yield Finding(ranks.NO_QUEUE, "QUEUE_STOPPED", f"{name} is stopped (stopPolicy: {stop}); it admits nothing.",
                      name, next="Whoever runs the queues has to open it again.")  # fmt: skip
    elif text(active, "status") == "False":
        yield Finding(ranks.NO_QUEUE, "QUEUE_INACTIVE", f"{name} is not active{since(turned_s(active), facts.now_s)}: "
                      f"{sentence(text(active, 'message'))}", name, turned_s(active),
                      "Whoever runs the queues has to complete it.")  # fmt: skip


def _position(one: Queued, facts: Facts) -> Finding:
    waiting = [other for other in facts.queued if other.queue == one.queue and other.state is State.WAITING]
    ahead = [other for other in waiting if other.position is not None and other.position < (one.position or 0)]
    words = f"It asks for {gpus(one.gpus)} and waits in ClusterQueue {one.queue}{since(one.since_s, facts.now_s)}"
    words += f", {ordinal(one.position or 1)} of {len(waiting)}"
    if "workloads" in facts.unread or _is_narrow(facts):
        words += " that you may read"
    words += f" with priority {one.priority}." if one.priority is not None else "."
    if ahead:
        words += f" Ahead: {listed([_brief(other) for other in ahead], _MOST_AHEAD)}."
    words += _quota(one, facts)
    if one.message:
        words += f" Kueue: {sentence(one.message)}"
    # A Workload that nobody has looked at yet has no condition.
    return Finding(ranks.QUEUE, "QUEUED", words, f"Workload {one.namespace}/{one.workload}", one.since_s, _next(
        one, facts))  # fmt: skip


def _is_narrow(facts: Facts) -> bool:
    """Whether other namespaces may not be read: then a position is only one among its own namespace's."""
    return any(one.startswith("workloads of") for one in facts.unread)


def _brief(one: Queued) -> str:
    return f"{one.full_name} ({gpus(one.gpus)}, priority {one.priority})"


def _quota(one: Queued, facts: Facts) -> str:
    """What its queue has and what is taken of it, in GPUs."""
    if facts.cluster_queue is None:
        return ""
    view = cluster_queue_view(facts.cluster_queue)
    total = _gpu_quota(view)
    if not total:
        return ""
    taken = sum(other.gpus for other in facts.queued if other.queue == one.queue
                and other.state in (State.RUNNING, State.STARTING, State.EVICTING))  # fmt: skip
    cohort = f"; it may borrow in cohort {view.cohort}" if view.cohort else ""
    more = " It asks for more than the queue has." if one.gpus > total and not view.cohort else ""
    return f" The queue has {gpus(total)}, {format_gpus(taken)} of them in use{cohort}.{more}"


def _gpu_quota(view: ClusterQueueView) -> int:
    return sum(milli_of(resource, amount // 1000) for (_, resource), amount in view.quota.items())


def _next(one: Queued, facts: Facts) -> str:
    view = cluster_queue_view(facts.cluster_queue) if facts.cluster_queue is not None else None
    total = _gpu_quota(view) if view is not None else 0
    if view is not None and total and one.gpus > total and not view.cohort:
        return f"Ask for at most {gpus(total)}, or submit it to a larger queue: here it can never start."
    return _ASK


def _stopped(one: Queued, facts: Facts) -> Finding:
    why = f" Kueue: {sentence(one.message)}" if one.message else ""
    return Finding(ranks.NO_QUEUE, "DEACTIVATED", f"Its Workload is deactivated (spec.active: false)"
                   f"{since(one.since_s, facts.now_s)}, and nobody of ours holds it.{why}",
                   f"Workload {one.namespace}/{one.workload}", one.since_s,
                   f"kubectl -n {one.namespace} patch workload {one.workload} --type merge -p "
                   "'{\"spec\":{\"active\":true}}'")  # fmt: skip


def _no_workload(facts: Facts) -> Finding:
    created_s = seconds(text(facts.root.document, "metadata", "creationTimestamp"))
    return Finding(ranks.QUEUE, "NO_WORKLOAD", f"It names the queue {facts.queue}, and Kueue has made no Workload for "
                   "it yet.", facts.root.label, created_s, "If that lasts: does Kueue manage this kind "
                   "(integrations.frameworks), and its namespace?")  # fmt: skip


def _has_begun(facts: Facts) -> bool:
    return any(text(pod, "spec", "nodeName") for pod in facts.pods)


def _groups(facts: Facts) -> Iterator[Finding]:
    for one in facts.groups:
        found = [*items(one.document, "status", "schedulingConditions"), *items(one.document, "status", "conditions")]
        for _, said in found:
            if not text(said, "type").startswith("Unschedulable") or text(said, "status") == "False":
                continue
            reasons = [text(reason, "message") for _, reason in items(said, "reasons")]
            message = text(said, "message") or " ".join(filter(None, reasons)) or text(said, "reason")
            if message and any(not text(pod, "spec", "nodeName") for pod in facts.pods):
                yield Finding(ranks.SCHEDULER, "GANG_UNSCHEDULABLE", f"Its gang does not fit: {sentence(message)}",
                              one.label, turned_s(mapping(said)), _ASK)  # fmt: skip
                return


def _unplaced(message: str, pods: list[Any], total: int, now_s: float) -> Finding:
    name, scheduler_ = text(pods[0], "metadata", "name"), text(pods[0], "spec", "schedulerName") or "default-scheduler"
    stamps = [turned_s(condition(pod, "PodScheduled")) for pod in pods]
    since_s = min((one for one in stamps if one is not None), default=None)
    how_many = f"{len(pods)} of its {total} pods have" if total > 1 else "Its pod has"
    if message.startswith("gates: "):
        return Finding(ranks.SCHEDULER, "GATED", f"{how_many} scheduling gates ({message[7:]}); no scheduler looks at "
                       "them until whoever set these takes them away.", f"Pod {name}", since_s)  # fmt: skip
    words = f" {scheduler_}: {message}" if message else f" {scheduler_} has not said anything yet."
    next_ = ("Is a scheduler of this name running?" if not message
             else "The nodes that it may use are full or do not match: `kopt queue` shows who runs there.")  # fmt: skip
    return Finding(ranks.SCHEDULER, "UNSCHEDULABLE", f"{how_many} no node{since(since_s, now_s)}.{words}",
                   f"Pod {name}", since_s, next_)  # fmt: skip


def _is_alive(pod: Any) -> bool:
    return text(pod, "status", "phase") not in ("Succeeded", "Failed") and at(pod, "metadata",
                                                                             "deletionTimestamp") is None  # fmt: skip


def _is_job(facts: Facts) -> bool:
    return facts.root.resource.kind == "Job" and facts.root.resource.group == "batch"
