"""What schedulers say about a workload that waits, as causes with the amounts that the message names.

The words are those of kube-scheduler 1.36 (``0/5 nodes are available: …``), Kueue 0.15 (``QuotaReserved``), KAI
Scheduler 0.12 (``schedulingConditions`` of its PodGroups) and Volcano 1.13 (``Unschedulable`` of its PodGroups). What
is not understood gives no cause.
"""

import re
from collections.abc import Callable, Iterator
from re import Match, Pattern

from kopt.cluster.workloads.requests.gpus import milli_of
from kopt.core.scheduling.diagnosis import Binding, Cause

_LONGEST = 20_000
_NUMBER = r"(\d{1,9}(?:\.\d{1,6})?)"
_RESOURCES = {"cpu": Binding.CPU_IN_USE, "memory": Binding.MEMORY_IN_USE}
_NODES: tuple[tuple[str, Binding], ...] = (
    (r"node\(s\) had (?:untolerated )?taint(?:\(s\)|s)?(?: \{([^}]*)\})?", Binding.TAINT),
    (r"node\(s\) didn't match Pod's node affinity/selector", Binding.NODE_AFFINITY),
    (r"node\(s\) didn't match (?:pod anti-affinity rules|pod affinity/anti-affinity)", Binding.POD_ANTI_AFFINITY),
    (r"node\(s\) didn't satisfy existing pods anti-affinity rules", Binding.POD_ANTI_AFFINITY),
    (r"node\(s\) didn't match pod affinity rules", Binding.POD_AFFINITY),
    (r"node\(s\) didn't (?:match|satisfy) pod topology spread constraints?", Binding.TOPOLOGY_SPREAD),
    (r"node\(s\) (?:were unschedulable|had cordoned)", Binding.CORDONED),
    (r"node\(s\) (?:were|was) not ready", Binding.NOT_READY),
    (r"(?:Too many pods|node\(s\) pod number exceeded)", Binding.PODS_PER_NODE),
    (r"node\(s\) didn't have free ports", Binding.PORT_IN_USE),
    (r"node\(s\) had (?:volume node affinity conflict|no available volume zone)", Binding.VOLUME),
    (r"node\(s\) (?:didn't find available persistent volumes|exceed max volume count)", Binding.VOLUME),
    (r"(?:node\(s\) )?cannot allocate all claims", Binding.CLAIM_UNALLOCATED),
    (r"node\(s\) didn't have enough resources: GPU memory", Binding.MEMORY_IN_USE),
    (r"node\(s\) didn't have enough resources: GPUs?", Binding.GPUS_IN_USE),
    (r"node\(s\) didn't have enough resources: CPU", Binding.CPU_IN_USE),
    (r"node\(s\) didn't have enough resources: [Mm]emory", Binding.MEMORY_IN_USE),
)


def causes_in(message: str) -> tuple[Cause, ...]:
    """The causes that a message names, each code once, those of the most nodes first; never raises."""
    # What kube-scheduler says about preemption repeats the same nodes.
    text = message[:_LONGEST].partition(" preemption: ")[0]
    causes: dict[tuple[Binding, str], Cause] = {}
    for pattern, make in _PATTERNS:
        for match in pattern.finditer(text):
            cause = make(match)
            causes.setdefault((cause.code, cause.about), cause)
    return tuple(sorted(causes.values(), key=lambda cause: -(cause.wanted or 0) if cause.unit == "nodes" else -1e18))


def _of_nodes(code: Binding) -> Callable[[Match[str]], Cause]:
    def make(match: Match[str]) -> Cause:
        about = (match[2] or "").replace(": ", "=").strip() if match.re.groups > 1 else ""
        return Cause(code, f"The scheduler: {match[0].strip()}.", float(match[1]), None, "nodes", about)

    return make


def _insufficient(match: Match[str]) -> Cause:
    resource = match[2].rstrip(".,")
    code = _RESOURCES.get(resource, Binding.GPUS_IN_USE if milli_of(resource, 1) else Binding.RESOURCE_IN_USE)
    return Cause(
        code,
        f"The scheduler: {match[1]} nodes have too little {resource} left.",
        float(match[1]),
        None,
        "nodes",
        resource,
    )


def _kueue_short(match: Match[str]) -> Cause:
    resource, flavor, missing = match[1], match[2], match[3]
    message = f"Kueue: {missing} more {resource} of flavor {flavor} needed."
    return Cause(Binding.QUOTA_IN_USE, message, None, None, resource, flavor)


def _kueue_never(match: Match[str]) -> Cause:
    message = f"Kueue: the queue can never give so much {match[1]} of flavor {match[2]}."
    return Cause(Binding.QUOTA_TOO_SMALL, message, None, None, match[1], match[2])


def _kueue_absent(match: Match[str]) -> Cause:
    message = f"Kueue: the queue has no quota for {match[1]}."
    return Cause(Binding.QUOTA_ABSENT, message, None, None, match[1])


def _kueue_flavor(match: Match[str]) -> Cause:
    return Cause(Binding.FLAVOR_EXCLUDED, f"Kueue: {match[0].strip()}.", None, None, "", match[1] or match[2] or "")


def _kai_limit(match: Match[str]) -> Cause:
    queue, limit, used, wanted = match[1], float(match[2]), float(match[3]), float(match[4])
    message = f"KAI: queue {queue} may use at most {limit:g} GPUs and uses {used:g}; {wanted:g} are requested."
    return Cause(Binding.QUEUE_LIMIT, message, wanted, max(0.0, limit - used), "GPUs", queue)


def _kai_quota(match: Match[str]) -> Cause:
    wanted, queue, quota, used = float(match[1]), match[2], float(match[3]), float(match[4])
    message = f"KAI: what cannot be preempted keeps to the {quota:g} GPUs of queue {queue}, {used:g} are in use."
    return Cause(Binding.QUEUE_QUOTA, message, wanted, max(0.0, quota - used), "GPUs", queue)


def _volcano_queue(match: Match[str]) -> Cause:
    about = (match[1] or "").strip(" .:")
    return Cause(Binding.QUEUE_LIMIT, "Volcano: the queue has too little left for it.", None, None, "", about)


def _gang(match: Match[str]) -> Cause:
    pods, least = float(match[1]), float(match[2])
    message = f"Its gang has {pods:g} pods of the {least:g} that have to start together."
    return Cause(Binding.GANG_INCOMPLETE, message, least, pods, "pods")


def _unbound(match: Match[str]) -> Cause:
    return Cause(Binding.VOLUME, f"The scheduler: {match[0].strip()}.", None, None, "", match[1] or "")


def _claim(match: Match[str]) -> Cause:
    return Cause(Binding.CLAIM_MISSING, f"The scheduler: {match[0].strip()}.", None, None, "", match[1] or "")


def _patterns() -> Iterator[tuple[Pattern[str], Callable[[Match[str]], Cause]]]:
    for phrase, code in _NODES:
        yield re.compile(rf"(\d{{1,9}}) {phrase}"), _of_nodes(code)
    yield re.compile(r"(\d{1,9}) Insufficient ([\w./-]{1,253})"), _insufficient
    yield (
        re.compile(r"insufficient unused quota for (\S{1,253}) in flavor (\S{1,253}), (\S{1,40}) more need"),
        _kueue_short,
    )
    yield re.compile(r"insufficient quota for (\S{1,253}) in flavor ([^\s,]{1,253})"), _kueue_never
    yield re.compile(r"resource (\S{1,253}) unavailable in ClusterQueue"), _kueue_absent
    yield (
        re.compile(r"flavor (\S{1,253}) doesn't match node affinity|untolerated taint .{1,300}? in flavor (\S{1,253})"),
        _kueue_flavor,
    )
    yield (
        re.compile(
            rf"(\S{{1,253}})'? quota has reached the allowable limit of GPUs\. Limit is {_NUMBER} GPUs, "
            rf"currently {_NUMBER} GPUs allocated and workload requested {_NUMBER} GPUs"
        ),
        _kai_limit,
    )
    yield (
        re.compile(
            rf"Workload requested {_NUMBER} GPUs, but (\S{{1,253}}) quota is {_NUMBER} GPUs, "
            rf"while {_NUMBER} GPUs are already"
        ),
        _kai_quota,
    )
    yield re.compile(r"queue resource quota insufficient(:[^,;]{0,200})?"), _volcano_queue
    yield (
        re.compile(r"\d{1,9}/(\d{1,9}) tasks in gang unschedulable: pod group is not ready, (\d{1,9}) minAvailable"),
        _gang,
    )
    yield (
        re.compile(
            r"pod has unbound immediate PersistentVolumeClaims|persistentvolumeclaim \"([^\"]{1,253})\" not found"
        ),
        _unbound,
    )
    yield (
        re.compile(r"resourceclaim \"([^\"]{1,253})\" not found|could not find v1\.ResourceClaim \"([^\"]{1,253})\""),
        _claim,
    )


_PATTERNS = tuple(_patterns())
