"""The pools that reservations are of, as the policy sees them. Pure, so that `kopt reservations plan` shares it."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from kopt.cluster.checkpoints.status import members_of
from kopt.cluster.workloads.kueue.objects import ClusterQueue
from kopt.cluster.workloads.kueue.queues import allows, charged_of, not_in_thousandths
from kopt.cluster.workloads.requests.gpus import devices_in
from kopt.cluster.workloads.requests.pods import is_gpu
from kopt.controllers.reservations.observed import Observed, holding, nodes_of
from kopt.controllers.reservations.views import HOLDER, HoldJob, ObservedNode, ObservedWorkload, Reserved
from kopt.core.decision import Mode
from kopt.core.reason import Reason
from kopt.core.scheduling.queue_tree import Engine
from kopt.core.scheduling.reservation import Occurrence, Reservation
from kopt.core.units import WHOLE_GPU
from kopt.core.workload.gpu_share import CHARGE_RESOURCE
from kopt.core.workload.run_time import LEVELS
from kopt.core.workload.save_state import USUAL_S, SaveState, save_state
from kopt.policies.lending import Candidate
from kopt.policies.preemption import PreemptionSettings, RunningGang
from kopt.policies.preemption.evidence import outlook
from kopt.policies.reservations import Claim, Pending, PoolSnapshot, RecurrenceError, Running, occurrences, overbooked

LEVEL = 0.95
"""A job counts as one that ends in time if it does with this probability."""
_STALE_S = 600.0
"""How long a pod's checkpoint status counts."""


@dataclass(frozen=True)
class Accepted:
    """A reservation that can be kept, with its occurrence: the one that goes on, or the next. ``resource``: what holds
    GPUs on nodes; ``charged``: what the queue has quota for, another where Kueue counts GPUs in thousandths."""

    reserved: Reserved
    spec: Reservation
    pool: str
    resource: str
    charged: str
    occurrence: Occurrence
    jobs: tuple[HoldJob, ...] = ()
    problem: str = ""
    """Why what holds its GPUs is not admitted."""

    @property
    def owner(self) -> str:
        return f"{self.spec.namespace}/{self.spec.queue}"


@dataclass(frozen=True)
class Pool:
    """A flavor with what is reserved of it. ``workloads`` by name, those that hold GPUs for us left out."""

    name: str
    resource: str
    snapshot: PoolSnapshot
    reservations: Mapping[str, Accepted] = field(default_factory=dict)
    workloads: Mapping[str, ObservedWorkload] = field(default_factory=dict)
    candidates: Mapping[str, Candidate] = field(default_factory=dict)


@dataclass(frozen=True)
class Reading:
    """All reservations: ``refused`` with a reason and a sentence, and those whose time is over."""

    accepted: tuple[Accepted, ...]
    refused: Mapping[str, tuple[str, str]]
    over: frozenset[str]


def read_reservations(observed: Observed) -> Reading:
    """Each by itself, and then all of a pool together."""
    accepted, refused, over = list[Accepted](), dict[str, tuple[str, str]](), set[str]()
    for reserved in observed.reservations:
        try:
            result = _accepted(observed, reserved)
        except Refusal as refusal:
            refused[reserved.name] = (refusal.reason, str(refusal))
            continue
        if result is None:
            over.add(reserved.name)
        else:
            accepted.append(result)
    by_pool: dict[tuple[str, str], list[Accepted]] = defaultdict(list)
    for each in accepted:
        by_pool[each.pool, each.resource].append(each)
    for (pool, resource), group in by_pool.items():
        gpus = sum(node.amounts.get(resource, 0) for node in nodes_of(observed, pool)) // WHOLE_GPU
        for name, text in overbooked([each.spec for each in group], gpus, observed.now_s).items():
            refused[name] = ("Overbooked", text)
    return Reading(tuple(each for each in accepted if each.reserved.name not in refused), refused, frozenset(over))


class Refusal(ValueError):
    """A reservation that cannot be kept; ``reason`` as in its condition."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


def _accepted(observed: Observed, reserved: Reserved) -> Accepted | None:
    spec = reserved.spec
    if spec is None:
        raise Refusal("Unreadable", reserved.error)
    try:
        own = occurrences(spec, observed.now_s, float("inf") if not spec.recurrence else observed.now_s + 366 * 86_400)
    except RecurrenceError as error:
        raise Refusal("Unreadable", str(error)) from None
    queue_name = observed.queue_name(spec)
    queue = observed.queues.get(queue_name)
    if queue is None:
        raise Refusal("UnknownQueue", _no_queue(observed, spec))
    pool, charged = _pool(spec, queue)
    if pool not in observed.flavors:
        raise Refusal("UnknownPool", f"There is no ResourceFlavor {pool}, which queue {queue_name} names.")
    resource = _on_nodes(observed, pool) if charged == CHARGE_RESOURCE else charged
    problem = _not_in_thousandths(observed, queue, (pool, charged), resource)
    _fits(observed, spec, queue, (pool, charged), resource)
    if not own:
        return None
    jobs = tuple(job for job in observed.jobs if job.owner_uid == reserved.uid and job.key[0] == spec.namespace)
    return Accepted(reserved, spec, pool, resource, charged, own[0], jobs, problem)


def _no_queue(observed: Observed, spec: Reservation) -> str:
    if observed.has_workloads:
        return f"There is no LocalQueue {spec.queue} in {spec.namespace} that is open."
    parent = " with a parent, without which it schedules nothing" if observed.engine is Engine.KAI else ""
    return f"There is no Queue {spec.queue} of {observed.engine.value}'s{parent}."


def _pool(spec: Reservation, queue: ClusterQueue) -> tuple[str, str]:
    offered = [(flavor, resource) for flavor, resource in queue.quotas if is_gpu(resource)]
    counted = {flavor for flavor, _ in offered}
    # Beside a quota of whole GPUs it is of shares alone.
    offered += [key for key in queue.quotas if key[1] == CHARGE_RESOURCE and key[0] not in counted]
    if spec.pool:
        offered = [(flavor, resource) for flavor, resource in offered if flavor == spec.pool]
    if not offered:
        names = ", ".join(sorted({flavor for flavor, resource in queue.quotas if devices_in(resource, 1000)})) or "none"
        wanted = f"pool {spec.pool}" if spec.pool else "GPUs"
        raise Refusal("UnknownPool", f"Queue {queue.name} has no quota of {wanted}; its pools with GPUs: {names}.")
    if len(offered) > 1:
        names = ", ".join(f"{flavor} ({resource})" for flavor, resource in offered)
        raise Refusal("UnknownPool", f"Queue {queue.name} has several pools; name one in spec.pool: {names}.")
    return offered[0]


def _on_nodes(observed: Observed, pool: str) -> str:
    """As what the nodes of a pool offer whole GPUs, which are reserved by pods on them."""
    nodes = nodes_of(observed, pool)
    names = sorted({name for node in nodes for name, amount in node.amounts.items() if amount and is_gpu(name)})
    if len(names) != 1:
        what = f"several kinds ({', '.join(names)})" if names else "none, as where GPUs are given out by claims alone"
        raise Refusal("UnknownPool", f"Whole GPUs are reserved by one resource of nodes; those of {pool} have {what}.")
    return names[0]


def _not_in_thousandths(observed: Observed, queue: ClusterQueue, of: tuple[str, str], resource: str) -> str:
    """Why what holds GPUs finds no quota that Kueue counts in thousandths, by how it counts these Jobs of ours; empty
    where nothing speaks against it. Raises Refusal where others' workloads do: ours would not be there once refused."""
    pool, charged = of
    if charged != CHARGE_RESOURCE:
        return ""
    if resource in queue.resources:
        text = f"Queue {queue.name} has its quota for {resource} in other pools than {pool}, whose quota is of shares."
        raise Refusal("UnknownPool", text)
    holds, result = holding(observed), ""
    for each in observed.workloads:
        here = observed.local_queues.get((each.key[0], each.workload.queue), "") == queue.name
        if here and each.workload.is_counted_in(resource):
            result = not_in_thousandths(queue.name, resource, each.workload.name)
            if each.workload.uid not in holds:
                raise Refusal("UnknownPool", result)
    return result


def _fits(observed: Observed, spec: Reservation, queue: ClusterQueue, of: tuple[str, str], resource: str) -> None:
    """``of``: the pool, and what its queue charges."""
    pool, charged = of
    each = spec.gpus_per_node * WHOLE_GPU
    nodes = [node for node in nodes_of(observed, pool) if spec.node_selector.items() <= node.labels.items()]
    room = sum(node.amounts.get(resource, 0) // each for node in nodes)
    if room < spec.nodes:
        text = f"It asks for {spec.nodes} × {spec.gpus_per_node} {resource}; the nodes of {pool} have room for {room}."
        raise Refusal("TooLarge", text)
    quota = queue.quotas[of]
    limit = quota.nominal if not queue.cohort else None
    if queue.cohort and quota.borrowing_limit is not None:
        limit = quota.nominal + quota.borrowing_limit
    limit = None if limit is None else devices_in(charged, limit)
    if limit is not None and spec.gpus * WHOLE_GPU > limit:
        text = f"It asks for {spec.gpus} {resource}; queue {queue.name} may use {limit // WHOLE_GPU} of {pool}."
        raise Refusal("QuotaTooSmall", text)


def pools_of(observed: Observed, accepted: Sequence[Accepted], ahead_s: float) -> list[Pool]:
    """The pools of which something is reserved within ``ahead_s``."""
    by_pool: dict[tuple[str, str, str], list[Accepted]] = defaultdict(list)
    for each in accepted:
        if each.occurrence.start_s - observed.ahead_s(each.spec, ahead_s) <= observed.now_s:
            by_pool[each.pool, each.resource, each.charged].append(each)
    read = _pool_of if observed.has_workloads else _pool_of_pods
    return [read(observed, *key, group) for key, group in sorted(by_pool.items())]


def _claims(group: Sequence[Accepted]) -> tuple[Claim, ...]:
    return tuple(
        Claim(
            each.reserved.name,
            each.owner,
            each.spec.gpus * WHOLE_GPU,
            each.occurrence.start_s,
            each.occurrence.until_s,
            each.spec.lead_s,
        )
        for each in group
        if not is_released(each)
    )


def _pool_of_pods(observed: Observed, name: str, resource: str, _: str, group: Sequence[Accepted]) -> Pool:
    """Of an engine without Workloads: its owners' pods count by their queues, all others are what is not free."""
    claims, nodes = _claims(group), nodes_of(observed, name)
    gpus, names = sum(node.amounts.get(resource, 0) for node in nodes), {node.name for node in nodes}
    pods = [pod for pod in observed.pods if not pod.reservation and pod.amounts.get(resource)]
    busy = sum(pod.amounts[resource] for pod in pods if pod.node in names)
    owners = {each.owner for each in group}
    own = [(pod, f"{pod.key[0]}/{pod.queues.get(observed.engine, '')}") for pod in pods]
    own = [(pod, owner) for pod, owner in own if owner in owners]
    running = tuple(Running("/".join(pod.key), owner, pod.amounts[resource], 0.0) for pod, owner in own if pod.node)
    pending = tuple(Pending("/".join(pod.key), owner, pod.amounts[resource]) for pod, owner in own if not pod.node)
    snapshot = PoolSnapshot(observed.now_s, gpus, max(0, gpus - busy), claims, running, pending)
    return Pool(name, resource, snapshot, {each.reserved.name: each for each in group})


def _pool_of(observed: Observed, name: str, resource: str, charged: str, group: Sequence[Accepted]) -> Pool:
    claims, nodes = _claims(group), nodes_of(observed, name)
    gpus = sum(node.amounts.get(resource, 0) for node in nodes)
    holds = holding(observed)
    others = [each for each in observed.workloads if each.workload.uid not in holds]
    having = [each for each in others if each.workload.uses.get((name, charged), 0) and not each.workload.pending]
    candidates = {each.workload.name: _candidate(observed, each, (name, charged)) for each in having}
    running = tuple(_running(observed, each, candidates[each.workload.name], (name, charged)) for each in having)
    lead_s = min((claim.lead_s for claim in claims), default=0.0)
    queued = sorted(
        (each for each in others if each.workload.pending and _may_use(observed, each, name, charged)),
        key=lambda each: (-each.workload.priority, each.workload.created_s, each.workload.name),
    )
    pending = tuple(_pending(observed, each, charged, lead_s) for each in queued)
    free = gpus - sum(job.gpus for job in running) - _unqueued(observed, nodes, resource)
    snapshot = PoolSnapshot(observed.now_s, gpus, max(0, free), claims, running, pending)
    reservations = {each.reserved.name: each for each in group}
    workloads = {each.workload.name: each for each in (*having, *queued)}
    return Pool(name, resource, snapshot, reservations, workloads, candidates)


def is_released(accepted: Accepted) -> bool:
    """Whether this occurrence was given back because nobody used it."""
    account = accepted.reserved.account
    same = account is not None and abs(account.occurrence.start_s - accepted.occurrence.start_s) < 1.0
    return same and account is not None and account.released_s is not None


def _unqueued(observed: Observed, nodes: Sequence[ObservedNode], resource: str) -> int:
    """What pods have there that no Workload accounts for; those of Jobs of ours are on their way."""
    names = {node.name for node in nodes}
    uids = {pod.gpu_pod.uid for each in observed.workloads for pod in observed.pods_of(each)}
    pods = [pod for pod in observed.pods if pod.node in names and not pod.reservation]
    return sum(pod.amounts.get(resource, 0) for pod in pods if pod.gpu_pod.uid not in uids)


def _may_use(observed: Observed, each: ObservedWorkload, pool: str, resource: str) -> bool:
    """Whether Kueue would give it quota of this pool and no other. What is held by others is not theirs to start."""
    workload = each.workload
    if workload.holder not in ("", HOLDER) or workload.mirrored or not (workload.active or workload.holder):
        return False
    queue = observed.queues.get(observed.local_queues.get((workload.key[0], workload.queue), ""))
    if queue is None or not charged_of(workload.requests, resource, queue, is_counted=workload.is_counted):
        return False
    flavors = queue.flavors(resource)
    keys = {key for name in flavors if name in observed.flavors for key in observed.flavors[name].labels}
    able = [
        name
        for name in flavors
        if all(allows(observed.flavors.get(name), pods.spec, keys) for pods in workload.pod_sets)
    ]
    return able == [pool]


def _running(observed: Observed, each: ObservedWorkload, candidate: Candidate, of: tuple[str, str]) -> Running:
    workload = each.workload
    started_s = workload.reserved_s or workload.created_s
    bounds_s = [] if each.longest_s is None else [max(0.0, each.longest_s - (observed.now_s - started_s))]
    quantiles = observed.run_times.get(workload.uid)
    bounds_s += [] if quantiles is None else [quantiles.seconds[LEVELS.index(LEVEL)]]
    # What was told to stop has its GPUs until its pods have ended.
    bounds_s += [0.0] if workload.terminating or not workload.active else []
    risk = outlook(candidate.gang, None, observed.now_s, PreemptionSettings(stale_s=_STALE_S))
    killable = candidate.barred is None and (candidate.idle or bool(risk.phases) or risk.askable)
    gpus = devices_in(of[1], workload.uses.get(of, 0))
    return Running(workload.name, each.queue, gpus, started_s, min(bounds_s, default=None), killable)


def _pending(observed: Observed, each: ObservedWorkload, resource: str, lead_s: float) -> Pending:
    workload = each.workload
    bounds_s = [] if each.longest_s is None else [each.longest_s]
    quantiles = observed.run_times.get(workload.uid)
    bounds_s += [] if quantiles is None else [quantiles.seconds[LEVELS.index(LEVEL)]]
    queue = observed.queues.get(observed.local_queues.get((workload.key[0], workload.queue), ""))
    gpus = 0 if queue is None else charged_of(workload.requests, resource, queue, is_counted=workload.is_counted)
    preempts = queue is not None and {queue.rules.within, queue.rules.reclaim} != {"Never"}
    stoppable = each.is_askable and lead_s >= 2 * USUAL_S and observed.mode(each) is Mode.ENFORCE
    return Pending(
        workload.name,
        each.queue,
        gpus,
        min(bounds_s, default=None),
        stoppable,
        preempts,
        workload.holder == HOLDER,
    )


def _candidate(observed: Observed, each: ObservedWorkload, of: tuple[str, str]) -> Candidate:
    """As a victim. ``barred``: not ours to stop, or told to already."""
    workload, now_s = each.workload, observed.now_s
    pods = observed.pods_of(each)
    since_s = workload.reserved_s or workload.created_s
    saving = save_state([pod.saving for pod in pods], now_s, since_s)
    gpus = devices_in(of[1], workload.uses.get(of, 0))
    members = members_of(gpus, [pod.gpu_pod for pod in pods], now_s, _STALE_S)
    requested = [pod.saving.requested_at_s for pod in pods if pod.saving.requested_at_s is not None]
    saved_at_s = min(requested) if requested and saving is SaveState.SAVED else None
    saves_s = USUAL_S if saving is SaveState.ASKABLE else None
    gang = RunningGang(
        workload.name, each.queue, workload.priority, members, since_s, saves_s=saves_s, saved_at_s=saved_at_s
    )
    return Candidate(gang, not any(pod.is_running for pod in pods), _barred(observed, each), saving)


def _barred(observed: Observed, each: ObservedWorkload) -> Reason | None:
    workload = each.workload
    if workload.terminating or not workload.active:
        return Reason("RESERVATION_STOPPING", f"{workload.name} stops already.")
    if workload.mirrored:
        return Reason("RESERVATION_NOT_OURS", f"{workload.name} is not ours to stop; another cluster decides about it.")
    if workload.holder:
        return Reason("RESERVATION_HELD", f"{workload.name} is held by {workload.holder}.")
    if observed.mode(each) is not Mode.ENFORCE:
        mode = observed.mode(each).value
        return Reason(
            "RESERVATION_NOT_OURS", f"{workload.name} is not ours to stop; its mode, or its namespace's, is {mode}."
        )
    return None
