"""How the pods that run stand to the policies, by namespace and policy."""

import asyncio
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from kopt.cluster.client.api import Kube
from kopt.cluster.client.resources import NAMESPACES, PODS, UNFINISHED_PODS, Object
from kopt.cluster.objects.fields import text
from kopt.cluster.workloads.compliance import is_subject, surroundings, team_pod
from kopt.core.units import WHOLE_GPU
from kopt.core.workload.compliance import CompliancePolicy, Judgement, Standing
from kopt.policies.compliance.offline import OfflinePolicy
from kopt.policies.compliance.teams import team_of, totals


@dataclass(frozen=True)
class PodStanding:
    """A pod that does not simply conform."""

    pod: str
    standing: Standing
    messages: tuple[str, ...]
    exempt_until_s: float | None = None


@dataclass
class Standings:
    """Of the pods of a namespace under one policy. ``pods`` are those that do not simply conform."""

    policy: CompliancePolicy
    namespace: str
    evaluated: int = 0
    pods: list[PodStanding] = field(default_factory=list)
    team_excess: tuple[str, ...] = ()

    def number(self, standing: Standing) -> int:
        return sum(pod.standing is standing for pod in self.pods)


async def read_report(kube: Kube, policies: Sequence[CompliancePolicy], now_s: float) -> list[Standings]:
    """With the caller's rights. Raises ApiError, and CelError and ModuleNotFoundError of ``OfflinePolicy``."""
    pods, namespaces = await asyncio.gather(kube.list(PODS, field_selector=UNFINISHED_PODS), kube.list(NAMESPACES))
    return report(policies, pods.items, namespaces.items, now_s)


def report(
    policies: Sequence[CompliancePolicy], pods: Sequence[Object], namespaces: Sequence[Object], now_s: float
) -> list[Standings]:
    """A row for each policy and each of its namespaces in which pods run."""
    by_space: dict[str, list[Object]] = defaultdict(list)
    for pod in pods:
        by_space[text(pod, "metadata", "namespace")].append(pod)
    named = {text(item, "metadata", "name"): item for item in namespaces}
    result = []
    for policy in policies:
        offline, teams = OfflinePolicy(policy, surroundings()), _excesses(policy, pods)
        for space, own in sorted(by_space.items()):
            namespace = named.get(space)
            if namespace is not None and is_subject(policy, namespace):
                result.append(_standings(offline, namespace, own, teams, now_s))
    return result


def _standings(
    offline: OfflinePolicy, namespace: Object, pods: Sequence[Object], teams: Mapping[str, str], now_s: float
) -> Standings:
    result = Standings(offline.policy, text(namespace, "metadata", "name"))
    for pod in pods:
        judgement: Judgement = offline.evaluate(pod, namespace, now_s)
        result.evaluated += 1
        if judgement.standing is not Standing.CONFORMS:
            name = text(pod, "metadata", "name")
            result.pods.append(PodStanding(name, judgement.standing, judgement.messages, judgement.exempt_until_s))
    limit = offline.policy.team
    if limit is not None:
        of_space = {team_of(limit, team_pod(pod)) for pod in pods}
        result.team_excess = tuple(sentence for team, sentence in teams.items() if team in of_space)
    return result


def _excesses(policy: CompliancePolicy, pods: Sequence[Object]) -> Mapping[str, str]:
    """A sentence for each team that has more than it may."""
    limit = policy.team
    if limit is None:
        return {}
    return {
        team: f"team {team} has {milli / WHOLE_GPU:g} GPUs, and may have {limit.gpus}"
        for team, milli in sorted(totals(limit, map(team_pod, pods)).items())
        if milli > limit.gpus * WHOLE_GPU
    }
