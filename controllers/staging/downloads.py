"""What is done about StagedData: Jobs, status, finalizer, events. The policy decides."""

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace

from kopt.cluster.client.api import AlreadyExists, Forbidden, Invalid, NotFound
from kopt.cluster.client.resources import (
    COMPONENT_LABEL,
    JOBS,
    PART_OF,
    PART_OF_LABEL,
    PERSISTENT_VOLUME_CLAIMS,
    Object,
)
from kopt.cluster.objects.custom.staged_data import FINALIZER, STAGED_DATA, status_of
from kopt.cluster.runtime.events import EmitEvent
from kopt.controllers.staging.ports import Cluster, DataObject, Reads, StagingSettings, Writes
from kopt.controllers.staging.progress_times import Steps
from kopt.controllers.staging.snapshot import StagingSnapshot, mode_of
from kopt.core.decision import Mode
from kopt.core.staging.staged_data import ClaimFolder, Copy, DataPhase, StagedData
from kopt.core.units import format_bytes
from kopt.policies.staging.copies import Step, Verb
from kopt.policies.staging.decide import DataSnapshot, Order, Outcome, decide, wishes
from kopt.policies.staging.pod import job_name, staging_job
from kopt.policies.staging.rules import NEVER, SLOW
from kopt.policies.staging.shares import Turns, Wish, share

COMPONENT = "staging"
_REFUSED_S = 30.0
_WAITS_FOR_OTHERS = "it waits until another download has ended"


class Downloads:
    """``reconcile`` one StagedData; raises as the writes do."""

    def __init__(
        self,
        cluster: Cluster,
        reads: Reads,
        writes: Writes,
        settings: StagingSettings,
        emit_event: EmitEvent,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._cluster, self._reads, self._writes, self._settings = cluster, reads, writes, settings
        self._emit_event, self._clock = emit_event, clock
        self._turns = Turns()
        self._started: frozenset[str] = frozenset()
        self._steps = Steps(settings.rules)
        self._refused: dict[tuple[str, str], tuple[float, str]] = {}

    def begin_pass(self, snapshot: StagingSnapshot) -> None:
        """Select the downloads that may begin, taking turns between namespaces."""
        now_s, rules = self._clock(), self._settings.rules
        self._refused = {key: item for key, item in self._refused.items() if now_s < item[0]}
        wanted = [
            wish
            for staged in snapshot.data_objects.values()
            if self._acts(staged)
            for wish in self._wishes(staged, snapshot, now_s)
        ]
        running = snapshot.running(Verb.STAGE)
        started, self._turns = share(wanted, running, self._turns, at_once=rules.at_once, per_namespace=rules.share)
        self._started = frozenset(wish.location for wish in started)
        counts = running + Counter(wish.namespace for wish in started)
        # A download that waits for its own namespace's slots would not get one that others give up.
        pending = [
            wish for wish in wanted if wish.location not in self._started and counts[wish.namespace] < rules.share
        ]
        self._steps.observe(snapshot, now_s, len(pending))

    def _acts(self, staged: DataObject) -> bool:
        mode, managed = mode_of(self._cluster, staged.data.namespace, "", self._settings)
        # Not by percentage: what is held for data that nobody downloads would wait for ever.
        return managed and mode is not Mode.OBSERVE and not self._settings.gate.is_off("staging")

    def _wishes(self, staged: DataObject, snapshot: StagingSnapshot, now_s: float) -> list[Wish]:
        """None for what the server has just refused: it would only take the turn of others."""
        data_snapshot = self._data_snapshot(staged, snapshot, now_s)
        result = wishes(data_snapshot, decide(data_snapshot, now_s, self._settings.rules))
        return [wish for wish in result if tuple(wish.location.split("/", 1)) not in self._refused]

    def _data_snapshot(self, staged: DataObject, snapshot: StagingSnapshot, now_s: float) -> DataSnapshot:
        data_snapshot = snapshot.data_snapshot(staged, self._settings, now_s)
        runs = {
            location: replace(run, stalled=self._steps.stalled(snapshot.job_of(staged.data, location)))
            for location, run in data_snapshot.runs.items()
        }
        return replace(data_snapshot, runs=runs)

    async def reconcile(self, staged: DataObject, snapshot: StagingSnapshot) -> float | None:
        """In how many seconds to run again if nothing changes; None for never."""
        now_s, data = self._clock(), staged.data
        if not self._acts(staged):
            if data.deleting and data.guarded:
                await self._let_go(staged)
            return None
        data_snapshot = await self._with_folder(self._data_snapshot(staged, snapshot, now_s), snapshot)
        outcome = decide(data_snapshot, now_s, self._settings.rules)
        if outcome.free and data.deleting:
            if data.guarded:
                await self._let_go(staged)
            return None
        outcome, staged = await self._obey(staged, snapshot, outcome)
        again_s = await self._write_status(staged, outcome.data, now_s)
        self._emit(data, outcome)
        times = [value for value in (outcome.again_s and outcome.again_s - now_s, again_s) if value is not None]
        return max(0.0, min(times)) if times else None

    async def _obey(
        self, staged: DataObject, snapshot: StagingSnapshot, outcome: Outcome
    ) -> tuple[Outcome, DataObject]:
        """Begin and end Jobs; failures are written into the copies."""
        copies = {item.location: item for item in outcome.data.copies}
        again_s = outcome.again_s
        for order in outcome.orders:
            copy = copies.get(order.location)
            if order.step is Step.END:
                job = snapshot.job_of(staged.data, order.location)
                if job is not None:
                    await self._writes.delete(JOBS, job.document)
            elif order.verb is Verb.STAGE and f"{staged.data.uid}/{order.location}" not in self._started:
                if copy is not None:
                    copies[order.location] = replace(copy, message=_WAITS_FOR_OTHERS)
            else:
                staged = await self._guard(staged)
                refused = await self._begin(staged.data, order)
                # A start is reported once its Job is seen: one that another leader created counts as well.
                if copy is not None and refused:
                    copies[order.location] = replace(copy, message=refused)
                    again_s = min(again_s or float("inf"), self._clock() + _REFUSED_S)
        data = replace(outcome.data, copies=tuple(copies.values()))
        return replace(outcome, data=data, again_s=again_s), staged

    async def _begin(self, data: StagedData, order: Order) -> str:
        """Create the Job; why the server refuses it, empty where it does not."""
        until_s, refusal = self._refused.get((data.uid, order.location), (0.0, ""))
        if self._clock() < until_s:
            return refusal
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
            refusal = f"its Job {job_name(data, order)} is refused: {error}"
            self._refused[data.uid, order.location] = (self._clock() + _REFUSED_S, refusal)
            return refusal
        return ""

    async def _guard(self, staged: DataObject) -> DataObject:
        """The object stays until its copies are gone: before the first byte is written."""
        if staged.data.guarded or staged.data.deleting:
            return staged
        finalizers = [*(staged.document["metadata"].get("finalizers") or ()), FINALIZER]
        document = await self._writes.patch(STAGED_DATA, staged.document, {"metadata": {"finalizers": finalizers}})
        self._cluster.noted(STAGED_DATA, document)
        return replace(staged, document=document, data=replace(staged.data, guarded=True))

    async def _let_go(self, staged: DataObject) -> None:
        remaining = [
            finalizer for finalizer in staged.document["metadata"].get("finalizers") or () if finalizer != FINALIZER
        ]
        await self._writes.patch(STAGED_DATA, staged.document, {"metadata": {"finalizers": remaining}})

    async def _with_folder(self, observed: DataSnapshot, snapshot: StagingSnapshot) -> DataSnapshot:
        """Of what is being deleted: whether its claim is still there, without which no pod of ours can start."""
        data, destination = observed.data, observed.data.spec.destination
        if not data.deleting or observed.users or not isinstance(destination, ClaimFolder) or observed.folder_deleted:
            return observed
        try:
            claim = await self._reads.get(PERSISTENT_VOLUME_CLAIMS, destination.claim, data.namespace)
        except NotFound:
            is_deleted = True
        else:
            is_deleted = "deletionTimestamp" in claim["metadata"]
        if is_deleted:
            for location, run in observed.runs.items():
                job = snapshot.job_of(data, location)
                if not run.ended and not run.ending and job is not None:
                    await self._writes.delete(JOBS, job.document)
        runs = (
            {location: replace(run, ended=True) for location, run in observed.runs.items()}
            if is_deleted
            else observed.runs
        )
        return replace(observed, folder_deleted=is_deleted, runs=runs)

    async def _write_status(self, staged: DataObject, data: StagedData, now_s: float) -> float | None:
        """Write the status if it changed; figures alone not too often. Returns when to write them, if not now."""
        before, after = staged.document.get("status") or {}, status_of(data)
        if before == after:
            return None
        moved = {"progress", "nodes"}
        if _without(before, moved) == _without(after, moved) and _reported_at_s(staged.data) is not None:
            due_s = (_reported_at_s(staged.data) or 0.0) + self._settings.progress_every_s
            if now_s < due_s and _phases(staged.data) == _phases(data):
                return due_s - now_s
        document = await self._writes.replace(STAGED_DATA, staged.document | {"status": after}, subresource="status")
        self._cluster.noted(STAGED_DATA, document)
        return None

    def _emit(self, before: StagedData, outcome: Outcome) -> None:
        data = outcome.data
        for node in outcome.lost:
            self._about(data, "CopyLost", f"Node {node} is gone or was set up anew, and the copy on it is lost.")
        was = {item.location: item for item in before.copies}
        for copy in data.copies:
            sentence = _sentence(copy, was.get(copy.location))
            if sentence:
                self._about(data, *sentence)

    def _about(self, data: StagedData, reason: str, sentence: str) -> None:
        self._emit_event(STAGED_DATA.reference(data.namespace, data.name, data.uid), reason, sentence)


def _sentence(copy: Copy, before: Copy | None) -> tuple[str, str] | None:
    """Reason and message of what is new about a copy."""
    where = f" on node {copy.location}" if copy.location else ""
    if before is not None and copy.failed_attempt > before.failed_attempt and copy.reason is not None:
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
        return "CopyEvicted", f"The copy{where} is deleted to make room: it is not in use."
    return None


def _phases(data: StagedData) -> list[object]:
    return [(copy.location, copy.phase, copy.attempts, copy.failed_attempt, copy.reason) for copy in data.copies]


def _reported_at_s(data: StagedData) -> float | None:
    return data.amounts.at_s if data.amounts else None


def _without(document: Object, names: set[str]) -> Object:
    return {key: value for key, value in document.items() if key not in names}
