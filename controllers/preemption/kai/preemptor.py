"""One reconcile of pods in KAI queues: as for plain pods, plus the scheduling gates of pending pods.

Gates are removed when the victims are terminating or gone, when there are no victims, and shortly after the budget
whatever the policy says. All state is on the pods, so that the next leader continues and ``kopt off`` releases them.
"""

import asyncio
import logging

from kopt.cluster.client.resources import Object
from kopt.cluster.runtime.retry import SOON_S
from kopt.controllers.preemption.kai.snapshot import KaiSnapshot, is_acted_on, kai_refusal
from kopt.controllers.preemption.kai.views import lasting, ungated
from kopt.controllers.preemption.kube_scheduler.preemptor import PlainPreemption
from kopt.controllers.preemption.kube_scheduler.snapshot import ClusterSnapshot, Gang, placed
from kopt.controllers.preemption.kube_scheduler.views import PlainPod
from kopt.controllers.preemption.patches import advised, outcome_document
from kopt.core.decision import Mode
from kopt.core.reason import Reason
from kopt.policies.preemption import PreemptionAction, PreemptionSettings

_LOG = logging.getLogger(__name__)


class KaiPreemption(PlainPreemption):
    """``step`` does what there is to do and returns in how many seconds to run again if nothing changes before."""

    @property
    def _policy(self) -> PreemptionSettings:
        """KAI preempts by its own rule, so preemption can be left to it."""
        return self._settings.policy

    def _refusal(self, preemptor: Gang, snapshot: ClusterSnapshot) -> Reason | None:
        if preemptor.pods[0].key[0] not in snapshot.ours or self._mode(preemptor) is not Mode.ENFORCE:
            return Reason("MODE", f"The mode for {preemptor.name} is no longer enforce.")
        if snapshot.now_s > preemptor.created_s + self._settings.budget_s + self._settings.overdue_s:
            return Reason("OVERDUE", f"The budget of {preemptor.name} is over.")
        return kai_refusal(preemptor, snapshot) if isinstance(snapshot, KaiSnapshot) else None

    def _is_under_way(self, snapshot: ClusterSnapshot) -> bool:
        return any(
            pod.open and not pod.refused and pod.decision and snapshot.now_s < pod.decision.until_s
            for pod in snapshot.pods
        )

    async def _promise(self, pod: PlainPod, node: str) -> None:
        """KAI does not know promises; the preemptor is released when its victims terminate."""

    def _was_made(self, preemptor: Gang, snapshot: ClusterSnapshot) -> bool:
        return is_acted_on(preemptor, snapshot) and placed(preemptor, snapshot, ()) is not None

    async def _room_is_made(self, preemptor: Gang) -> None:
        until_s = self._clock() + self._settings.shield_s
        held = [pod for pod in preemptor.pods if pod.refused]
        await asyncio.gather(
            *(
                self._writer.patch(plain_pod, _with(ungated(plain_pod), lasting(plain_pod, until_s)))
                for plain_pod in held
            )
        )

    async def _no_victims(self, preemptor: Gang, reason: Reason) -> float:
        _LOG.info("%s is left to KAI: %s", preemptor.name, reason.message)
        document = outcome_document(PreemptionAction.LEAVE, self._clock(), reason.code, reason.message)
        for pod in [pod for pod in preemptor.pods if pod.refused]:
            await self._writer.patch(pod, _with(ungated(pod), advised(pod.gpu_pod.uid, document)))
        if reason.code != "FITS":
            self._once(preemptor, reason)
        return SOON_S


def _with(changes: Object, other: Object) -> Object:
    """One patch with the annotations of another."""
    metadata = changes["metadata"]
    annotations = {**metadata["annotations"], **other["metadata"]["annotations"]}
    return changes | {"metadata": {**metadata, "annotations": annotations}}
