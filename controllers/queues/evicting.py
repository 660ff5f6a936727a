"""Evicts borrowers for conservative queues, asks them to save before, and gives them back.

An eviction is one write on the Workload: the hold, and with it the notice that says for which other and when. Whatever
a leader that dies leaves behind is thus on the object, and the next one goes on from there. Held, a Workload cannot
have back at once what was taken from it.
"""

import logging
from collections.abc import Callable
from typing import Protocol

from kopt.cluster.client.api import ApiError, Kube, NotFound
from kopt.cluster.client.resources import KUEUE_WORKLOADS, PODS, Object, Resource
from kopt.cluster.holds.checkpoint_request import request_patch
from kopt.cluster.holds.hold import HELD_LABEL, HoldError, hold, pass_on
from kopt.cluster.objects.eviction import EVICTING_ANNOTATION, notice_of, notice_text
from kopt.cluster.workloads.kueue.objects import KueueWorkload
from kopt.cluster.workloads.kueue.reading import read_kueue_workload
from kopt.controllers.queues.borrowers import HOLDER, Borrower
from kopt.controllers.queues.reclaiming import Attempts, Reclaiming
from kopt.core.scheduling.eviction import Cause, Notice
from kopt.core.workload.save_state import USUAL_S
from kopt.policies.queues.reclaim import PACE, Pace

_LOG = logging.getLogger(__name__)
MINE = "kopt-queues"
Emit = Callable[[Object, str, str], None]


class Writer(Protocol):
    async def patch(self, resource: Resource, document: Object, changes: Object) -> Object: ...


class Evictions:
    """The writes of one term."""

    def __init__(self, kube: Kube, writer: Writer, emit: Emit, clock: Callable[[], float], pace: Pace = PACE) -> None:
        self._kube, self._writer, self._emit, self._clock, self._pace = kube, writer, emit, clock, pace
        self.attempts: dict[str, Attempts] = {}
        """By workload that waits: of this term, and longer than borrowers are held for it."""

    async def carry_out(self, reclaiming: Reclaiming) -> None:
        """What was decided: a checkpoint is asked for, or borrowers are held."""
        self.attempts = {name: it for name, it in self.attempts.items() if name in reclaiming.pending}
        for step in reclaiming.steps:
            if step.decision.victims:
                self._count(step.waits.name)
            for name in step.decision.saves:
                await self._request_save(reclaiming.borrowers[name], step.waits, step.decision.reason.message)
            for name in step.decision.victims:
                await self._evict(reclaiming.borrowers[name], step.waits, step.decision.reason.message)

    def _count(self, name: str) -> None:
        """Writes that failed belong to the attempt, and are made up for by the next passes."""
        last, now_s = self.attempts.get(name, Attempts(0)), self._clock()
        if not last.number or now_s - last.last_s >= self._pace.longest_s:
            self.attempts[name] = Attempts(last.number + 1, now_s)

    async def give_back(self, *, acts: bool) -> int:
        """Held Workloads whose owner has its quota, is gone, or has not had it for too long; all of them where the
        controller does not act any more. Returns how many stay held."""
        try:
            held = (await self._kube.list(KUEUE_WORKLOADS, label_selector=f"{HELD_LABEL}={HOLDER}")).items
        except NotFound:
            return 0
        stay = 0
        for document in held:
            why = await self._over(document) if acts else "its queues are not carried out now"
            stay += not why
            if why:
                changes = pass_on(KUEUE_WORKLOADS, document)
                metadata = changes["metadata"]
                metadata["annotations"] = metadata["annotations"] | {EVICTING_ANNOTATION: None}
                await self._patch(document, changes)
                self._emit(_reference(document), "GivenBack", f"It is back in its queue: {why}.")
        return stay

    async def _over(self, document: Object) -> str:
        """Why a Workload is not held any longer; empty while it is."""
        notice = notice_of(document)
        if notice is None:
            return "it does not say for whom it was evicted"
        if self._clock() - notice.at_s >= self._pace.pause_s:
            return f"{notice.for_whom} was not admitted within {self._pace.pause_s:.0f} s"
        if read_kueue_workload(document).reserved_s is not None:
            # Kueue has not ended its pods yet; active again, it would count as admitted.
            return ""
        space, _, name = notice.for_whom.partition("/")
        try:
            owner = read_kueue_workload(await self._kube.get(KUEUE_WORKLOADS, name, space))
        except NotFound:
            return f"{notice.for_whom} is gone"
        waits = owner.reserved_s is None and owner.active and not owner.finished
        return "" if waits else f"{notice.for_whom} waits for its quota no longer"

    async def _evict(self, borrower: Borrower, waits: KueueWorkload, why: str) -> None:
        workload = borrower.workload
        notice = Notice(MINE, Cause.PREEMPTED, waits.name, self._clock(), why)
        try:
            changes = hold(KUEUE_WORKLOADS, workload.document, HOLDER)
        except HoldError as error:
            _LOG.info("%s is not evicted: %s", workload.name, error)
            return
        metadata = changes["metadata"]
        text = notice_text(notice, workload.uid)
        metadata["annotations"] = metadata["annotations"] | {EVICTING_ANNOTATION: text}
        if await self._patch(workload.document, changes):
            self._emit(_reference(workload.document), "Reclaimed", why)

    async def _request_save(self, borrower: Borrower, waits: KueueWorkload, why: str) -> None:
        """All pods of a workload that have not been asked yet; the deadline is that of the first request."""
        now_s, saving = self._clock(), borrower.saving
        until_s = saving.request.until_s if saving.request else now_s + USUAL_S
        for pod in saving.unasked_pods:
            document = {
                "metadata": {
                    "namespace": pod.key[0],
                    "name": pod.key[1],
                    "uid": pod.uid,
                    "resourceVersion": pod.version,
                }
            }
            patch = request_patch(MINE, why, now_s, until_s, waits.name, uid=pod.uid)
            try:
                await self._writer.patch(PODS, document, patch)
            except ApiError as error:
                _LOG.info("%s is asked later: %s", "/".join(pod.key), error)
        self._emit(_reference(borrower.workload.document), "SaveRequested", why)

    async def _patch(self, document: Object, changes: Object) -> bool:
        """False where it has changed since, or may not be changed: the next pass is about what it is then."""
        try:
            await self._writer.patch(KUEUE_WORKLOADS, document, changes)
        except ApiError as error:
            _LOG.info("%s is left as it is: %s", document["metadata"]["name"], error)
            return False
        return True


def _reference(document: Object) -> Object:
    metadata = document["metadata"]
    return KUEUE_WORKLOADS.reference(metadata["namespace"], metadata["name"], metadata["uid"])
