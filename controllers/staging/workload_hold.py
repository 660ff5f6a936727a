"""What is done about workloads that request data: they are held, informed of progress, released, steered to nodes."""

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from kopt.cluster.client.api import AlreadyExists
from kopt.cluster.client.resources import JOBS, KUEUE_WORKLOADS, PODS, Object
from kopt.cluster.holds.hold import hold, hold_metadata, pass_on, release, wait_turn
from kopt.cluster.objects.annotations import mapping_of
from kopt.cluster.objects.custom.staged_data import (
    STAGED_DATA,
    STAGING_ANNOTATION,
    body_of,
    staging_report,
    staging_report_of,
)
from kopt.cluster.runtime.events import EmitEvent
from kopt.cluster.runtime.tracing import Span, context_of, derived_context, name_attributes, untraced
from kopt.cluster.workloads.jobs import JOB_NAME_LABEL, has_begun
from kopt.cluster.workloads.owners import owner_of
from kopt.controllers.staging.affinity import affinity_to
from kopt.controllers.staging.ports import Cluster, Reads, StagingSettings, Writes, keys_of
from kopt.controllers.staging.snapshot import StagingSnapshot, mode_of
from kopt.controllers.staging.views import HOLDER, QueuedWorkload, RequestingWorkload
from kopt.core.decision import Mode
from kopt.core.staging.staged_data import DataPhase, NodeCache, StagedData
from kopt.core.times import seconds, seconds_or_none
from kopt.policies.staging.decide import is_ready
from kopt.policies.staging.holding import DataWorkload, Hold, hold_for

_NOT_HELD = (
    "Pods in a queue of Kueue's are not held: it may start before its data is there. Use a Job, or remove "
    "the queue's label."
)
_REPORT_EVERY_S = 10.0
_SMALL = ("bytes", "bytesDone", "secondsLeft", "at")


class Holding:
    """``reconcile`` one workload; raises as the writes do, and HoldError where others hold it in an unknown way."""

    def __init__(
        self,
        cluster: Cluster,
        reads: Reads,
        writes: Writes,
        settings: StagingSettings,
        emit_event: EmitEvent,
        clock: Callable[[], float] = time.time,
        trace: Callable[[Span], None] = untraced,
    ) -> None:
        self._cluster, self._reads, self._writes, self._settings = cluster, reads, writes, settings
        self._emit_event, self._clock, self._trace = emit_event, clock, trace
        self._reported: dict[str, str] = {}

    async def reconcile(self, workload: RequestingWorkload, snapshot: StagingSnapshot) -> float | None:
        """In how many seconds to run again if nothing changes; None for never."""
        mode, managed = mode_of(self._cluster, workload.key[0], workload.mode, self._settings)
        mode = self._settings.gate.mode("staging", owner_of(workload.document, workload.resource.plural), mode)
        staged_datas, missing = self._data(workload, snapshot)
        acts = managed and mode is not Mode.OBSERVE and not workload.finished
        if acts and not workload.opted_out:
            await self._make(workload, snapshot)
        complete = all(
            is_ready(snapshot.data_snapshot(snapshot.data_objects[staged_data.key], self._settings))
            for staged_data in staged_datas
        )
        ready = complete and not workload.request.problem and not missing
        if ready and workload.holder != HOLDER and staging_report_of(workload.document).get("state") != "ready":
            # The nodes of its copies have to be written into it first.
            ready = _common_nodes(staged_datas) is None
        kueue = snapshot.kueue.get(workload.uid, ())
        begun = await self._has_begun(workload, requested=mode is Mode.ENFORCE and acts and not ready)
        action = hold_for(_asker(workload, kueue, mode, managed=managed, begun=begun), ready=ready)
        state, reason, message = _state(workload, staged_datas, missing, ready=ready)
        if (
            workload.resource == PODS
            and workload.queued
            and acts
            and mode is Mode.ENFORCE
            and not ready
            and not workload.ran
        ):
            self._emit(workload, "NotHeld", _NOT_HELD)
        match action:
            case Hold.RELEASE:
                await self._release(workload, staged_datas, ready=ready, state=(state, reason, message))
            case Hold.HOLD | Hold.PARK:
                await self._hold(workload, staged_datas, (state, reason, message))
            case Hold.ANNOTATE:
                # First the mark: the next leader, or `kopt off`, then knows whose stop it is.
                made = {"metadata": hold_metadata(HOLDER, {})}
                await self._patch(workload, made, self._annotation(workload, staged_datas, (state, reason, message)))
                self._emit(
                    workload, "StoppedForData", "Its queue has admitted it, and none of its containers has started."
                )
            case Hold.STOP:
                await self._stop(kueue)
            case Hold.QUEUE_UP:
                await self._patch(workload, wait_turn(workload.document, HOLDER))
            case _ if acts:
                return await self._keep_annotation(workload, staged_datas, (state, reason, message))
        if action is Hold.LEAVE and managed and mode is Mode.OBSERVE and not ready and not workload.ran:
            self._emit(workload, "StagingAdvised", "In mode enforce it would be held until its data is ready.")
        return None

    def forget(self, snapshot: StagingSnapshot) -> None:
        """Reports on workloads that are gone."""
        present = {workload.uid for workload in snapshot.workloads}
        self._reported = {uid: summary for uid, summary in self._reported.items() if uid in present}

    def _data(self, workload: RequestingWorkload, snapshot: StagingSnapshot) -> tuple[list[StagedData], list[str]]:
        """The existing StagedData that it names, and the names of missing ones."""
        keys = keys_of(workload)
        staged_datas = [snapshot.data_objects[key].data for key in keys if key in snapshot.data_objects]
        return staged_datas, [name for space, name in keys if (space, name) not in snapshot.data_objects]

    async def _make(self, workload: RequestingWorkload, snapshot: StagingSnapshot) -> None:
        """Create the StagedData for its unnamed requests."""
        for name, spec in workload.request.made:
            if (workload.key[0], name) not in snapshot.data_objects:
                try:
                    made = await self._writes.create(STAGED_DATA, body_of(workload.key[0], name, spec))
                except AlreadyExists:
                    continue
                self._cluster.noted(STAGED_DATA, made)

    async def _has_begun(self, workload: RequestingWorkload, *, requested: bool) -> bool:
        """Whether stopping it loses work; its pods are only read if that decides."""
        if workload.ran or not workload.runs or not requested or workload.holder not in ("", HOLDER):
            return workload.ran
        if workload.resource != JOBS:
            return True
        pods = await self._reads.list(PODS, workload.key[0], label_selector=f"{JOB_NAME_LABEL}={workload.key[1]}")
        return any(has_begun(item) for item in pods.items)

    async def _hold(
        self, workload: RequestingWorkload, staged_datas: Sequence[StagedData], state: tuple[str, str, str]
    ) -> None:
        changes = hold(workload.resource, workload.document, HOLDER)
        await self._patch(workload, changes, self._annotation(workload, staged_datas, state))
        self._emit(
            workload, "HeldForData", f"It waits for {', '.join(workload.request.all_names) or 'its data'}, in no queue."
        )

    async def _stop(self, kueue: Sequence[QueuedWorkload]) -> None:
        """Kueue would start it again if others suspended it."""
        for item in kueue:
            if item.active and item.has_quota:
                changes = hold(KUEUE_WORKLOADS, item.document, HOLDER)
                self._cluster.noted(KUEUE_WORKLOADS, await self._writes.patch(KUEUE_WORKLOADS, item.document, changes))

    async def give_back(self, kueue: QueuedWorkload, snapshot: StagingSnapshot) -> None:
        """A Workload that we have stopped is released once its owner is."""
        owner = next((workload for workload in snapshot.workloads if workload.uid == kueue.owner_uid), None)
        if kueue.holder == HOLDER and (owner is None or owner.holder != HOLDER):
            changes = release(KUEUE_WORKLOADS, kueue.document)
            self._cluster.noted(KUEUE_WORKLOADS, await self._writes.patch(KUEUE_WORKLOADS, kueue.document, changes))

    async def _release(
        self,
        workload: RequestingWorkload,
        staged_datas: Sequence[StagedData],
        *,
        ready: bool,
        state: tuple[str, str, str],
    ) -> None:
        changes = pass_on(workload.resource, workload.document)
        nodes = _common_nodes(staged_datas) if ready else None
        if nodes is not None and not workload.finished:
            changes = changes | {"spec": _merged(changes.get("spec") or {}, self._steered(workload, nodes))}
        await self._patch(workload, changes, self._annotation(workload, staged_datas, state))
        if (span := _span_of(workload, self._clock(), ready=ready)) is not None:
            self._trace(span)
        if ready:
            self._emit(workload, "DataReady", "Its data is complete: it is released to its queue.")
        else:
            self._emit(workload, "LetGo", "It is no longer to be held.")

    def _steered(self, workload: RequestingWorkload, nodes: Collection[str]) -> Object:
        """The change of a Job's or a pod's ``spec`` that keeps its pods to nodes with a copy, beside what it asks for
        itself; of other kinds none."""
        names = {node.name: node.hostname for node in self._cluster.nodes()}
        wanted = sorted(names.get(node, node) for node in nodes)
        spec = workload.document["spec"]
        if workload.resource == JOBS:
            return {"template": {"spec": {"affinity": affinity_to(wanted, spec["template"]["spec"])}}}
        return {"affinity": affinity_to(wanted, spec, only_adds=True)} if workload.resource == PODS else {}

    async def _keep_annotation(
        self, workload: RequestingWorkload, staged_datas: Sequence[StagedData], state: tuple[str, str, str]
    ) -> float | None:
        """The annotation of a workload that stays as it is: at once where text changes, figures from time to time."""
        text = self._annotation(workload, staged_datas, state)
        before, after = staging_report_of(workload.document), mapping_of({STAGING_ANNOTATION: text}, STAGING_ANNOTATION)
        states = [{key: value for key, value in item.items() if key not in _SMALL} for item in (before, after)]
        if states[0] == states[1]:
            if before.get("bytesDone") == after.get("bytesDone") or workload.holder != HOLDER:
                return None
            due_s = _REPORT_EVERY_S - (self._clock() - _seconds(before))
            if due_s > 0:
                return due_s
        await self._patch(workload, {}, text)
        if after.get("state") == "failed" and states[0].get("message") != after.get("message"):
            self._emit(workload, "DataMissing", f"{after.get('reason')}: {after.get('message')}")
        return None

    def _annotation(
        self, workload: RequestingWorkload, staged_datas: Sequence[StagedData], state: tuple[str, str, str]
    ) -> str:
        return staging_report(state[0], workload.request, list(staged_datas), state[1], state[2], self._clock())

    async def _patch(self, workload: RequestingWorkload, changes: Object, text: str = "") -> None:
        metadata = dict(changes.get("metadata") or {})
        if text:
            metadata["annotations"] = {**(metadata.get("annotations") or {}), STAGING_ANNOTATION: text}
        document = await self._writes.patch(workload.resource, workload.document, changes | {"metadata": metadata})
        self._cluster.noted(workload.resource, document)

    def _emit(self, workload: RequestingWorkload, reason: str, sentence: str) -> None:
        if self._reported.get(workload.uid) != sentence:
            self._reported[workload.uid] = sentence
            self._emit_event(workload.resource.reference(*workload.key, workload.uid), reason, sentence)


def _asker(
    workload: RequestingWorkload, kueue: Sequence[QueuedWorkload], mode: Mode, *, managed: bool, begun: bool
) -> DataWorkload:
    return DataWorkload(
        mode,
        managed,
        workload.queued,
        workload.runs,
        begun,
        any(item.has_quota for item in kueue),
        any(item.holder == HOLDER for item in kueue),
        workload.parked,
        workload.changeable,
        workload.stopped,
        workload.finished,
        workload.opted_out,
        workload.holder == HOLDER,
        workload.holder not in ("", HOLDER),
        workload.next,
    )


def _span_of(workload: RequestingWorkload, released_s: float, *, ready: bool) -> Span | None:
    """The time that a traced workload has waited for its data; None for one that is not traced."""
    context, metadata = context_of(workload.document), workload.document["metadata"]
    created_s = seconds_or_none(metadata.get("creationTimestamp"))
    if context is None or created_s is None:
        return None
    about = {"k8s.namespace.name": workload.key[0], "kopt.data": ",".join(workload.request.all_names)}
    about |= name_attributes(workload.resource.group, workload.resource.kind, workload.key[1])
    error = "" if ready else "released before its data was complete"
    start_ns, end_ns = round(created_s * 1e9), round(released_s * 1e9)
    return Span("stage data", derived_context(context, workload.uid, "stage data"), start_ns, end_ns, about, error)


def _state(
    workload: RequestingWorkload, staged_datas: Sequence[StagedData], missing: Sequence[str], *, ready: bool
) -> tuple[str, str, str]:
    """State, reason and message of ``kaiwo.ai/staging``."""
    if ready:
        return "ready", "", ""
    if workload.request.problem:
        return "failed", "BadRequest", workload.request.problem
    made = {name for name, _ in workload.request.made}
    if absent := [item for item in missing if item not in made]:
        return "failed", "NotFound", f"there is no StagedData {', '.join(absent)} in {workload.key[0]}"
    for data in staged_datas:
        speaker = data.speaker
        if speaker is not None and speaker.reason is not None:
            state = "failed" if data.phase is DataPhase.FAILED else "held"
            return state, speaker.reason.value, f"{data.name}: {speaker.message}"
    message = next(
        (
            staged_data.missing or (staged_data.speaker.message if staged_data.speaker else "")
            for staged_data in staged_datas
        ),
        "",
    )
    return "held", "", message


def _common_nodes(staged_datas: Sequence[StagedData]) -> set[str] | None:
    """Nodes with copies of all node-cached data; None if none is node-cached."""
    places = [
        set(staged_data.ready_locations)
        for staged_data in staged_datas
        if isinstance(staged_data.spec.destination, NodeCache)
    ]
    return set.intersection(*places) if places else None


def _merged(first: Object, second: Object) -> Object:
    """Two merge patches in one."""
    result = dict(first)
    for key, value in second.items():
        both = isinstance(value, dict) and isinstance(result.get(key), dict)
        result[key] = _merged(result[key], value) if both else value
    return result


def _seconds(before: Mapping[str, Any]) -> float:
    try:
        return seconds(str(before.get("at")))
    except ValueError:
        return 0.0
