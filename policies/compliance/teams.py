"""The GPUs that the pods of a team have together: what no expression over one pod can see."""

from collections import Counter
from collections.abc import Iterable, Mapping

from kopt.core.units import WHOLE_GPU
from kopt.core.workload.compliance import CompliancePolicy, TeamLimit, TeamPod


def team_of(limit: TeamLimit, pod: TeamPod) -> str:
    """The team that pays for a pod; empty where it belongs to none."""
    return pod.labels.get(limit.label, "") if limit.label else pod.namespace


def totals(limit: TeamLimit, pods: Iterable[TeamPod]) -> Mapping[str, int]:
    """Milli-GPU of each team."""
    result: Counter[str] = Counter()
    for pod in pods:
        if pod.milli_gpu and (team := team_of(limit, pod)):
            result[team] += pod.milli_gpu
    return result


def excess(policy: CompliancePolicy, pod: TeamPod, used_milli: int) -> str:
    """Why a pod is too much for its team, which has ``used_milli`` without it; empty where it is not."""
    limit = policy.team
    if limit is None or not pod.milli_gpu or used_milli + pod.milli_gpu <= limit.gpus * WHOLE_GPU:
        return ""
    team = team_of(limit, pod)
    if not team:
        return ""
    wants, has = (f"{milli / WHOLE_GPU:g}" for milli in (pod.milli_gpu, used_milli))
    hint = f" {policy.message}" if policy.message else ""
    return (
        f"CompliancePolicy {policy.name}: team {team} may have {limit.gpus} GPUs together; its pods have {has}, and"
        f" this one asks for {wants}.{hint}"
    )
