"""The GPUs of a team together (`spec.maximumPerTeam` of CompliancePolicies), checked as each pod is created.

Asked by the validating webhook: by then a pod has its uid, so that what this replica has let through counts at once and
once only. Several replicas may together let through what arrives within the delay of their watches.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from kopt.cluster.admission.review import Review
from kopt.cluster.client.api import ApiError, Kube
from kopt.cluster.client.resources import COMPLIANCE_POLICIES, NAMESPACES, PODS, UNFINISHED_PODS, Object
from kopt.cluster.objects.custom.compliance_policy import policy_of
from kopt.cluster.objects.fields import text
from kopt.cluster.runtime.informer import Informer
from kopt.cluster.workloads.compliance import is_subject, team_pod
from kopt.core.workload.compliance import CompliancePolicy, PolicyMode, TeamPod
from kopt.policies.compliance.teams import excess, team_of

_LOG = logging.getLogger(__name__)
_ARRIVES_S = 10.0
"""Within which the watch brings a pod that was let through, if it was created at all."""


@dataclass(frozen=True)
class Totals:
    """What the totals say to a pod: a refusal, empty for none, and warnings."""

    refusal: str = ""
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Counted:
    uid: str
    pod: TeamPod


def counted(document: Object) -> _Counted | None:
    """A pod with GPUs; None for all others."""
    pod = team_pod(document)
    return _Counted(text(document, "metadata", "uid"), pod) if pod.milli_gpu else None


def policy_with_team(document: Object) -> CompliancePolicy | None:
    """A policy with a total; None for all others, and for one that cannot be meant, which applying it has said."""
    try:
        policy = policy_of(document)
    except ValueError as error:
        _LOG.warning("CompliancePolicy %s: %s", text(document, "metadata", "name"), error)
        return None
    return policy if policy.team is not None else None


class TeamTotals:
    """Pods are watched only while a policy has a total. ``changed`` is called when the first comes or the last goes."""

    def __init__(
        self, kube: Kube, changed: Callable[[], None] = lambda: None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._kube, self._changed, self._clock = kube, changed, clock
        self.policies: Informer[CompliancePolicy] = Informer(kube, COMPLIANCE_POLICIES, keep=policy_with_team)
        self.pods: Informer[_Counted] = Informer(kube, PODS, keep=counted, field_selector=UNFINISHED_PODS)
        self._admitted: dict[str, tuple[float, TeamPod]] = {}
        self._wanted = asyncio.Event()

    @property
    def counts(self) -> bool:
        """Whether any policy has a total."""
        return bool(self.policies.objects)

    async def run(self) -> None:
        """Watches until cancelled."""
        self.policies.subscribe(lambda _: self._policies_changed())
        async with asyncio.TaskGroup() as group:
            group.create_task(self.policies.run())
            await self._wanted.wait()
            group.create_task(self.pods.run())

    def _policies_changed(self) -> None:
        if self.counts:
            self._wanted.set()
        self._changed()

    async def evaluate(self, review: Review) -> Totals:
        """Nothing is said while the pods are not known: unsure means hands off."""
        requested = counted(review.object)
        if requested is None or not self.counts or not self.pods.synced.is_set():
            return Totals()
        # The object may name no namespace; the request does.
        pod = TeamPod(review.namespace, requested.pod.labels, requested.pod.milli_gpu)
        refusals, warnings = list[str](), list[str]()
        for policy in list(self.policies.objects.values()):
            sentence = excess(policy, pod, self._used(policy, pod, requested.uid))
            if sentence and await self._is_subject(policy, review.namespace):
                (refusals if policy.mode is PolicyMode.DENY else warnings).append(sentence)
        if not refusals and requested.uid and not review.dry_run:
            self._admitted[requested.uid] = self._clock(), pod
        return Totals(" ".join(refusals), tuple(warnings))

    def _used(self, policy: CompliancePolicy, pod: TeamPod, uid: str) -> int:
        assert policy.team is not None
        team = team_of(policy.team, pod)
        others = (other for key, other in self._counted_pods() if key != uid)
        return sum(other.milli_gpu for other in others if team_of(policy.team, other) == team)

    def _counted_pods(self) -> Iterator[tuple[str, TeamPod]]:
        """Each pod by its uid, those that the watch has not brought yet as well."""
        watched = {each.uid for each in self.pods.objects.values()}
        since_s = self._clock() - _ARRIVES_S
        self._admitted = {
            uid: (at_s, pod) for uid, (at_s, pod) in self._admitted.items() if at_s > since_s and uid not in watched
        }
        yield from ((each.uid, each.pod) for each in self.pods.objects.values())
        yield from ((uid, pod) for uid, (_, pod) in self._admitted.items())

    async def _is_subject(self, policy: CompliancePolicy, namespace: str) -> bool:
        try:
            return is_subject(policy, await self._kube.get(NAMESPACES, namespace))
        except ApiError:
            return False
