"""One pass over pods of KAI's queues: what is done for plain pods, and the gates of those that wait.

They are taken away when the chosen are on their way out or gone, when nobody is chosen, and a little after the budget
whatever the policy says. All of it stands on the pods, so that the next leader goes on, and ``kopt off`` gives them
back.
"""

import asyncio
import logging

from kopt.cluster.resources import Object
from kopt.controllers.preemption.kai.room import KaiMoment, is_acted_on, kai_refusal
from kopt.controllers.preemption.kai.views import lasting, ungated
from kopt.controllers.preemption.marks import advised, word
from kopt.controllers.preemption.passes import SOON_S
from kopt.controllers.preemption.plain.room import Gang, Moment, placed
from kopt.controllers.preemption.plain.taking import PlainTaking
from kopt.controllers.preemption.plain.views import PlainPod
from kopt.core.decision import Mode
from kopt.core.reason import Reason
from kopt.policies.preemption import PreemptionSettings, Verdict

_LOG = logging.getLogger(__name__)


class KaiTaking(PlainTaking):
    """``step`` does what there is to do and says in how many seconds to look again, should nothing change before."""

    @property
    def _policy(self) -> PreemptionSettings:
        """KAI's own rule is there to leave it to."""
        return self._settings.policy

    def _refusal(self, waiting: Gang, moment: Moment) -> Reason | None:
        if waiting.pods[0].key[0] not in moment.ours or self._mode(waiting) is not Mode.ENFORCE:
            return Reason("MODE", f"The mode for {waiting.name} is no longer enforce.")
        if moment.now_s > waiting.created_s + self._settings.budget_s + self._settings.overdue_s:
            return Reason("OVERDUE", f"The budget of {waiting.name} is over.")
        return kai_refusal(waiting, moment) if isinstance(moment, KaiMoment) else None

    def _is_under_way(self, moment: Moment) -> bool:
        return any(one.open and not one.refused and one.verdict and moment.now_s < one.verdict.until_s
                   for one in moment.pods)  # fmt: skip

    async def _promise(self, pod: PlainPod, node: str) -> None:
        """KAI does not know promises; who waits is let go when the chosen leave."""

    def _was_made(self, waiting: Gang, moment: Moment) -> bool:
        return is_acted_on(waiting, moment) and placed(waiting, moment, ()) is not None

    async def _room_is_made(self, waiting: Gang) -> None:
        until_s = self._clock() + self._settings.cover_s
        held = [one for one in waiting.pods if one.refused]
        await asyncio.gather(*(self._writer.patch(one, _with(ungated(one), lasting(one, until_s))) for one in held))

    async def _left(self, waiting: Gang, reason: Reason) -> float:
        _LOG.info("%s is left to KAI: %s", waiting.name, reason.message)
        verdict = word(Verdict.LEAVE, self._clock(), reason.code, reason.message)
        for one in [one for one in waiting.pods if one.refused]:
            await self._writer.patch(one, _with(ungated(one), advised(verdict)))
        if reason.code != "FITS":
            self._once(waiting, reason)
        return SOON_S


def _with(changes: Object, notes: Object) -> Object:
    """One patch with the annotations of another."""
    metadata = changes["metadata"]
    annotations = {**metadata["annotations"], **notes["metadata"]["annotations"]}
    return changes | {"metadata": {**metadata, "annotations": annotations}}
