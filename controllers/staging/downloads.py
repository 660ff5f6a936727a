"""What is done about StagedData: Jobs, status, finalizer, events. Deciding is the policy's."""

import time
from collections.abc import Callable
from dataclasses import replace

from kopt.cluster.api import AlreadyExists, Forbidden, Invalid, NotFound
from kopt.cluster.resources import COMPONENT_LABEL, JOBS, PART_OF, PART_OF_LABEL, PERSISTENT_VOLUME_CLAIMS, Object
from kopt.cluster.staged_data import FINALIZER, STAGED_DATA, status_of
from kopt.controllers.staging.given import Cluster, DataView, Reads, StagingSettings, Tell, Writes
from kopt.controllers.staging.scene import Scene, mode_of
from kopt.core.decision import Mode
from kopt.core.staged_data import ClaimFolder, Copy, DataPhase, StagedData
from kopt.core.units import format_bytes
from kopt.policies.staging.copies import Step, Verb
from kopt.policies.staging.decide import Known, Order, Outcome, decide
from kopt.policies.staging.pod import job_name, staging_job
from kopt.policies.staging.rules import NEVER, SLOW

COMPONENT = "staging"
_REFUSED_S = 30.0
_WAITS_FOR_OTHERS = "it waits until another download has ended"


class Downloads:
    """``look_at`` one StagedData; raises as the writes do."""

    def __init__(self, cluster: Cluster, reads: Reads, writes: Writes, settings: StagingSettings, tell: Tell,
                 clock: Callable[[], float] = time.time) -> None:  # fmt: skip
        self._cluster, self._reads, self._writes, self._settings = cluster, reads, writes, settings
        self._tell, self._clock = tell, clock
        self._slots = 0
        self._refused: dict[tuple[str, str], tuple[float, str]] = {}

    def begin_pass(self, scene: Scene) -> None:
        """Count the downloads that run."""
        running = scene.running(Verb.STAGE)
        self._slots = self._settings.rules.at_once - running
        now_s = self._clock()
        self._refused = {key: one for key, one in self._refused.items() if now_s < one[0]}

    async def look_at(self, view: DataView, scene: Scene) -> float | None:
        """In how many seconds to look again if nothing changes; None for never."""
        now_s, data = self._clock(), view.data
        mode, managed = mode_of(self._cluster, data.namespace, "", self._settings.mode)
        if mode is Mode.OBSERVE or not managed:
            if data.deleting and data.guarded:
                await self._let_go(view)
            return None
        known = await self._with_folder(scene.known(view, self._settings, now_s), scene)
        outcome = decide(known, now_s, self._settings.rules)
        if outcome.free and data.deleting:
            if data.guarded:
                await self._let_go(view)
            return None
        outcome, view = await self._obey(view, scene, outcome)
        again_s = await self._write_status(view, outcome.data, now_s)
        self._say(data, outcome)
        times = [one for one in (outcome.again_s and outcome.again_s - now_s, again_s) if one is not None]
        return max(0.0, min(times)) if times else None

    async def _obey(self, view: DataView, scene: Scene, outcome: Outcome) -> tuple[Outcome, DataView]:
        """Begin and end Jobs; what could not be done stands in the copies."""
        copies = {one.place: one for one in outcome.data.copies}
        again_s = outcome.again_s
        for order in outcome.orders:
            copy = copies.get(order.place)
            if order.step is Step.END:
                job = scene.job_of(view.data, order.place)
                if job is not None:
                    await self._writes.delete(JOBS, job.document)
            elif order.verb is Verb.STAGE and self._slots < 1:
                if copy is not None:
                    copies[order.place] = replace(copy, message=_WAITS_FOR_OTHERS)
            else:
                view = await self._guard(view)
                refused = await self._begin(view.data, order)
                self._slots -= order.verb is Verb.STAGE
                # What has begun is told of once it is seen: a Job that another leader made counts as well.
                if copy is not None and refused:
                    copies[order.place] = replace(copy, message=refused)
                    again_s = min(again_s or float("inf"), self._clock() + _REFUSED_S)
        data = replace(outcome.data, copies=tuple(copies.values()))
        return replace(outcome, data=data, again_s=again_s), view

    async def _begin(self, data: StagedData, order: Order) -> str:
        """Create the Job; why the server refuses it, empty where it does not."""
        until_s, told = self._refused.get((data.uid, order.place), (0.0, ""))
        if self._clock() < until_s:
            return told
        settings = self._settings.pods
        labels = {PART_OF_LABEL: PART_OF, COMPONENT_LABEL: COMPONENT}
        body = staging_job(data, order, replace(settings, labels={**settings.labels, **labels}))
        owner = STAGED_DATA.reference("", data.name, data.uid) | {"controller": True, "blockOwnerDeletion": True}
        body["metadata"]["ownerReferences"] = [owner]
        try:
            self._cluster.noted(JOBS, await self._writes.create(JOBS, body))
        except AlreadyExists:
            return ""
        except (Forbidden, Invalid) as error:
            told = f"its Job {job_name(data, order)} is refused: {error}"
            self._refused[data.uid, order.place] = (self._clock() + _REFUSED_S, told)
            return told
        return ""

    async def _guard(self, view: DataView) -> DataView:
        """The object stays until its copies are gone: before the first byte is written."""
        if view.data.guarded or view.data.deleting:
            return view
        finalizers = [*(view.document["metadata"].get("finalizers") or ()), FINALIZER]
        document = await self._writes.patch(STAGED_DATA, view.document, {"metadata": {"finalizers": finalizers}})
        self._cluster.noted(STAGED_DATA, document)
        return replace(view, document=document, data=replace(view.data, guarded=True))

    async def _let_go(self, view: DataView) -> None:
        left = [one for one in view.document["metadata"].get("finalizers") or () if one != FINALIZER]
        await self._writes.patch(STAGED_DATA, view.document, {"metadata": {"finalizers": left}})

    async def _with_folder(self, known: Known, scene: Scene) -> Known:
        """Of what is being deleted: whether its claim is still there, without which no pod of ours can start."""
        data, destination = known.data, known.data.spec.destination
        if not data.deleting or known.users or not isinstance(destination, ClaimFolder) or known.folder_gone:
            return known
        try:
            claim = await self._reads.get(PERSISTENT_VOLUME_CLAIMS, destination.claim, data.namespace)
        except NotFound:
            gone = True
        else:
            gone = "deletionTimestamp" in claim["metadata"]
        if gone:
            for place, run in known.runs.items():
                job = scene.job_of(data, place)
                if not run.ended and not run.ending and job is not None:
                    await self._writes.delete(JOBS, job.document)
        runs = {place: replace(run, ended=True) for place, run in known.runs.items()} if gone else known.runs
        return replace(known, folder_gone=gone, runs=runs)

    async def _write_status(self, view: DataView, data: StagedData, now_s: float) -> float | None:
        """The status where it changed; figures alone not too often. When to write them, if not now."""
        before, after = view.document.get("status") or {}, status_of(data)
        if before == after:
            return None
        moved = {"progress", "nodes"}
        if _without(before, moved) == _without(after, moved) and _told_at(view.data) is not None:
            due_s = (_told_at(view.data) or 0.0) + self._settings.progress_every_s
            if now_s < due_s and _phases(view.data) == _phases(data):
                return due_s - now_s
        document = await self._writes.replace(STAGED_DATA, view.document | {"status": after}, subresource="status")
        self._cluster.noted(STAGED_DATA, document)
        return None

    def _say(self, before: StagedData, outcome: Outcome) -> None:
        data = outcome.data
        for node in outcome.lost:
            self._about(data, "CopyLost", f"Node {node} is gone or was set up anew, and the copy on it is lost.")
        was = {one.place: one for one in before.copies}
        for copy in data.copies:
            sentence = _sentence(copy, was.get(copy.place))
            if sentence:
                self._about(data, *sentence)

    def _about(self, data: StagedData, reason: str, sentence: str) -> None:
        self._tell(STAGED_DATA.reference(data.namespace, data.name, data.uid), reason, sentence)


def _sentence(copy: Copy, before: Copy | None) -> tuple[str, str] | None:
    """Reason and words of what is new about a copy."""
    where = f" on node {copy.place}" if copy.place else ""
    if before is not None and copy.judged > before.judged and copy.reason is not None:
        again = ""
        if copy.reason in NEVER:
            again = " It is tried again when its spec changes."
        elif copy.reason in SLOW:
            again = " It is tried again every few minutes, or at once with the annotation kaiwo.ai/stage-again."
        name = "RemovalFailed" if copy.phase is DataPhase.EVICTED else "StagingFailed"
        return name, f"{copy.reason}{where}: {copy.message}.{again}"
    phase = before.phase if before else DataPhase.WAITING
    if copy.phase is phase:
        return None
    if copy.phase is DataPhase.READY:
        size = format_bytes(copy.amounts.bytes) if copy.amounts else "all of it"
        return "DataReady", f"The copy{where} is complete: {size}."
    if copy.phase is DataPhase.STAGING and phase is not DataPhase.STAGING:
        return "StagingStarted", f"A Job fetches it{where}, attempt {copy.attempts}."
    if copy.phase is DataPhase.EVICTED:
        return "CopyEvicted", f"The copy{where} makes room: nobody uses it."
    return None


def _phases(data: StagedData) -> list[object]:
    return [(one.place, one.phase, one.attempts, one.judged, one.reason) for one in data.copies]


def _told_at(data: StagedData) -> float | None:
    return data.amounts.at_s if data.amounts else None


def _without(document: Object, names: set[str]) -> Object:
    return {key: value for key, value in document.items() if key not in names}
