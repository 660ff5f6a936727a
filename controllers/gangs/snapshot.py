"""The snapshot that the policy decides on, of what was observed. Pure."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from kopt.cluster.client.resources import JOBS, KUEUE_WORKLOADS, Key, Object, Resource
from kopt.cluster.workloads.node_selection import runs_on
from kopt.cluster.workloads.requests.pods import is_gpu
from kopt.controllers.gangs.views import HOLDER, GangOwner, ObservedNode, ObservedPod
from kopt.core.decision import Mode
from kopt.core.reason import Reason
from kopt.core.times import seconds_or_none
from kopt.core.workload.checkpoint import JobState
from kopt.policies.gangs import Gang, GangPod, GangSnapshot

_STALE_S, _MOST_GPU_S = 600.0, 1e12


@dataclass(frozen=True)
class Owned:
    """A gang by what it is stopped with: ``resource`` of ``owner``."""

    resource: Resource
    owner: GangOwner
    pods: tuple[ObservedPod, ...]
    name: str
    """``namespace/name`` as people know it: of the Job where there is one."""

    @property
    def reference(self) -> Object:
        return self.resource.reference(*self.owner.key, self.owner.uid)

    @property
    def bound(self) -> int:
        return sum(bool(pod.node) and not pod.terminating for pod in self.pods)

    @property
    def has_started(self) -> bool:
        return self.owner.finished or self.bound >= self.owner.minimum


@dataclass(frozen=True)
class Observed:
    """Everything that informers have seen. ``mode``: of an owner by its own word and its namespace."""

    now_s: float
    pods: Sequence[ObservedPod]
    nodes: Sequence[ObservedNode]
    jobs: Sequence[GangOwner]
    workloads: Sequence[GangOwner]
    mode: Callable[[GangOwner], Mode]


def gangs_of(observed: Observed) -> list[Owned]:
    """Kueue's Workloads before Jobs: what Kueue has admitted is stopped by its Workload."""
    by_owner: dict[str, list[ObservedPod]] = defaultdict(list)
    by_workload: dict[Key, list[ObservedPod]] = defaultdict(list)
    for pod in observed.pods:
        if pod.owner_uid:
            by_owner[pod.owner_uid].append(pod)
        if pod.workload:
            by_workload[pod.key[0], pod.workload].append(pod)
    jobs = {job.uid: job for job in observed.jobs}
    result, with_workload = [], set[str]()
    for workload in observed.workloads:
        job = jobs.get(workload.owner_uid)
        minimum = workload.minimum if job is None else job.minimum
        if job is None and workload.owner_kind == "Job":
            continue
        if job is not None:
            with_workload.add(job.uid)
        if not minimum:
            continue
        pods = by_owner.get(workload.owner_uid) or by_workload.get(workload.key, [])
        name = "/".join(workload.key if job is None else job.key)
        evictions = 0 if job is None else job.remaining_evictions
        owner = replace(workload, minimum=minimum, remaining_evictions=evictions)
        result.append(Owned(KUEUE_WORKLOADS, owner, tuple(pods), name))
    for job in observed.jobs:
        if job.minimum and job.uid not in with_workload and not job.queued:
            result.append(Owned(JOBS, job, tuple(by_owner.get(job.uid, ())), "/".join(job.key)))
    return result


def snapshot_of(
    observed: Observed, owned: Iterable[Owned], *, in_mode: Mode | None = None, kept_whole: frozenset[str] = frozenset()
) -> GangSnapshot:
    """``in_mode``: gangs in a lower mode are spared; None: whatever their mode."""
    gangs = [gang for each in owned if (gang := _gang(each, observed, in_mode)) is not None]
    gpus = {name for gang in gangs for pod in gang.pods for name in pod.requests if is_gpu(name)}
    return GangSnapshot(tuple(gangs), free_of(observed), observed.now_s, frozenset(gpus), kept_whole)


def free_of(observed: Observed) -> dict[str, dict[str, int]]:
    """What terminating pods hold counts as free: it will be soon."""
    free = {node.name: dict(node.room) for node in observed.nodes}
    for pod in observed.pods:
        if pod.node in free and not pod.terminating:
            for name, value in pod.requests.items():
                free[pod.node][name] = free[pod.node].get(name, 0) - value
    return free


def _gang(owned: Owned, observed: Observed, in_mode: Mode | None) -> Gang | None:
    """None for what is stopped, over or without GPUs, and where it could run is not known."""
    owner, pods = owned.owner, [pod for pod in owned.pods if not pod.terminating]
    if not owner.runs or owner.finished or not pods or not any(pod.has_gpus for pod in pods):
        return None
    if not all(pod.simple for pod in pods):
        return None
    # Where a gang could go matters for half-placed ones alone, and is most of the work among thousands of nodes.
    is_half = 0 < sum(bool(pod.node) for pod in pods) < owner.minimum
    return Gang(
        owned.name,
        tuple(GangPod(pod.key[1], pod.requests, pod.node, pod.bound_s, pod.refused) for pod in pods),
        owner.minimum,
        _nodes(pods, observed.nodes) if is_half else frozenset(),
        max(pod.priority for pod in pods),
        min(pod.created_s for pod in pods),
        _loss_gpu_s(pods, observed.now_s),
        _spared(owned, observed, in_mode),
    )


def _nodes(pods: Sequence[ObservedPod], nodes: Sequence[ObservedNode]) -> frozenset[str]:
    """Where all of its pods may run; they are nearly always alike."""
    rules: list[Object] = []
    for pod in pods:
        if pod.rules not in rules:
            rules.append(pod.rules)
    return frozenset(node.name for node in nodes if all(runs_on(each, node.labels, node.taints) for each in rules))


def _loss_gpu_s(pods: Sequence[ObservedPod], now_s: float) -> float | None:
    """Work at risk as its pods report it, each for the whole job, with what has been computed since; None for none."""
    values = []
    for pod in pods:
        observed_s = seconds_or_none(pod.checkpoint.get("kaiwo.ai/checkpoint-observed-at", ""))
        risk = pod.checkpoint.get("kaiwo.ai/work-at-risk", "")
        if observed_s is None or not (risk.isascii() and risk.isdigit()) or not 0 <= now_s - observed_s <= _STALE_S:
            continue
        values.append(min(float(risk[:15]), _MOST_GPU_S))
    return max(values, default=None)


def _spared(owned: Owned, observed: Observed, in_mode: Mode | None) -> Reason | None:
    owner = owned.owner
    writes = [pod for pod in owned.pods if _is_writing(pod, observed.now_s)]
    if writes:
        return Reason("GANG_WRITING", f"{owned.name} is writing a checkpoint.")
    if owner.holder not in ("", HOLDER) or owner.mirrored:
        return Reason("GANG_HELD", f"{owned.name} is held by {owner.holder or 'another cluster'}.")
    if in_mode is not None and observed.mode(owner) is not in_mode:
        return Reason("GANG_MODE", f"The mode of {owned.name} is {observed.mode(owner).value}.")
    return None


def _is_writing(pod: ObservedPod, now_s: float) -> bool:
    observed_s = seconds_or_none(pod.checkpoint.get("kaiwo.ai/checkpoint-observed-at", ""))
    state: Mapping[str, str] = pod.checkpoint
    is_recent = observed_s is not None and now_s - observed_s <= _STALE_S
    return is_recent and state.get("kaiwo.ai/checkpoint-state") == JobState.CKPT_WRITING.value
