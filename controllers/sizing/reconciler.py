"""One step at a time for one Job, decided anew from the state on the objects; every step is one write."""

import contextlib
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import replace

from kopt.cluster.client.api import Conflict, Forbidden, Invalid, NotFound
from kopt.cluster.client.resources import JOBS, Key, Object, key_of
from kopt.cluster.holds.hold import (
    HELD_LABEL,
    UNDO_ANNOTATION,
    HoldError,
    hold,
    hold_metadata,
    holder_of,
    is_mirrored,
    next_holders,
    pass_on,
    wait_turn,
)
from kopt.cluster.holds.original_request import request_of
from kopt.cluster.objects.annotations import AnnotationError
from kopt.cluster.objects.custom.staged_data import waits_for_data
from kopt.cluster.objects.fields import at, text
from kopt.cluster.runtime.lease import Fence
from kopt.cluster.workloads.jobs import is_changeable
from kopt.cluster.workloads.owners import owner_of
from kopt.controllers.sizing.dry_runs import DryRuns
from kopt.controllers.sizing.jobs import (
    HOLDER,
    REASON_ANNOTATION,
    STATE_ANNOTATION,
    State,
    annotations_of,
    as_written,
    asking,
    granted,
    granted_of,
    is_at_rest,
    is_untouched,
    job_type_of,
    original_request_of,
    read_state,
    restored,
    snapshot_of,
)
from kopt.controllers.sizing.needs import Needs
from kopt.controllers.sizing.pods import JobPod
from kopt.controllers.sizing.ports import AskEndpoint, Cluster, Complain, EmitEvent, Queueing, SizingSettings
from kopt.controllers.sizing.profiles import SIZING_PROFILES, Learned
from kopt.core.decision import Mode
from kopt.core.units import Bytes
from kopt.core.workload.profile import JobType
from kopt.core.workload.sizing import ShareKind
from kopt.policies.sizing.profiling import (
    NO_COMMAND,
    Attempts,
    GpuShareRequest,
    JobSnapshot,
    after_out_of_memory,
    is_over_budget,
    waits_for_dry_run,
)
from kopt.policies.sizing.profiling_pod import PROFILING_LABEL

_LOG = logging.getLogger(__name__)
COMPONENT = "sizing"
_SOON_S, _LATER_S = 0.5, 5.0


class Reconciler:
    """``reconcile`` takes one step for one Job and returns in how many seconds to run again, None for no time."""

    def __init__(
        self,
        cluster: Cluster,
        queues: Queueing,
        fence: Fence,
        settings: SizingSettings,
        ask: AskEndpoint | None = None,
        emit_event: EmitEvent = lambda *_: None,
        clock: Callable[[], float] = time.time,
        complain: Complain = lambda *_: None,
    ) -> None:
        self._complain = complain
        self._cluster, self._queues, self._fence, self._settings = cluster, queues, fence, settings
        self._emit_event, self._clock = emit_event, clock
        self._dry_runs = DryRuns(cluster, fence, settings.dry_run, emit_event, clock)
        self._needs = Needs(cluster, queues, settings.profiling, ask, clock)

    async def reconcile(self, key: Key) -> float | None:
        """Raises ApiError (but Conflict: the object will be seen as it is), Deposed, and AnnotationError."""
        job = self._cluster.job(key)
        if job is None:
            return None
        try:
            if digest := text(job, "metadata", "labels", PROFILING_LABEL):
                return await self._dry_runs.finish(job, digest)
            return await self._user_job(job)
        except (Conflict, NotFound):
            return _SOON_S

    async def _user_job(self, job: Object) -> float | None:
        """Raises AnnotationError for a Job that is not held and whose state cannot be read: it stays as it is. One that
        is held goes on from its hold, or it would never be released."""
        try:
            state = read_state(job)
        except AnnotationError as error:
            if holder_of(job) != HOLDER:
                raise
            self._complain(job, error)
            # Written at once, or the time of the hold would begin anew at each reconcile.
            state = self._new_state(job)
            job = await self._write(job, {}, {STATE_ANNOTATION: state.to_json()})
        kind = job_type_of(as_written(job))
        snapshot = snapshot_of(
            as_written(job),
            self._cluster.namespace(job["metadata"]["namespace"]),
            self._settings.mode,
            self._settings.workload_may_lower,
            self._cluster.executor(),
        )
        is_off = self._settings.gate.mode("profiling", owner_of(job, JOBS.plural), Mode.ENFORCE) is Mode.OBSERVE
        snapshot = replace(
            snapshot,
            mode=Mode.OBSERVE if is_off else snapshot.mode,
            untouched=snapshot.admitted and not snapshot.started and is_untouched(job, self._pods(job)),
        )
        if holder_of(job) == HOLDER:
            if state is None:
                # The holder before us has handed it over: the time of our hold counts from here.
                await self._write(job, {}, {STATE_ANNOTATION: self._new_state(job).to_json()})
                return _SOON_S
            return await self._held_job(job, snapshot, state, kind)
        if state is not None and (state.seen or state.stopped) and snapshot.queued:
            await self._queues.resume(self._fence, job)
        if state is not None and state.phase == "sized" and not snapshot.finished and not is_off:
            return await self._sized_job(job, state, admitted=snapshot.admitted)
        if state is not None:
            return None
        return await self._new_job(job, snapshot, kind)

    async def _new_job(self, job: Object, snapshot: JobSnapshot, kind: JobType | None) -> float | None:
        if is_mirrored(job):
            return None
        learned = self._needs.current(job, kind)
        # A known type is held for a moment as well if there is something to change: it can only be changed while held.
        changes = (
            learned is not None and (await self._needs.request(job, snapshot, learned)).kind is not ShareKind.WHOLE
        )
        free = replace(snapshot, held_by_others=False)
        decision = waits_for_dry_run(
            free, measured=learned is not None and not changes, settings=self._settings.profiling
        )
        if not decision.yes:
            if decision.reason.code == NO_COMMAND:
                await self._emit_refusal(job, decision.reason.message)
            return None
        if snapshot.held_by_others:
            return await self._wait_turn(job)
        if waits_for_data(job):
            # A dry run needs the data as well: it is the staging controller's first.
            return None
        if snapshot.admitted:
            return await self._request_stop(job)
        state = self._new_state(job)
        try:
            await self._write(job, hold(JOBS, job, HOLDER), {STATE_ANNOTATION: state.to_json()})
        except HoldError as error:
            _LOG.info("%s is not held: %s", job["metadata"]["name"], error)
            return None
        if changes:
            self._emit_event(job, "HeldToBeSized", "This job type is known: held until its request is updated.")
        else:
            self._emit_event(job, "HeldForDryRun", decision.reason.message)
        return _SOON_S

    async def _wait_turn(self, job: Object) -> float | None:
        """Its holder passes it on to us, so that it does not start in between."""
        if HOLDER not in next_holders(job):
            with contextlib.suppress(HoldError):
                await self._write(job, wait_turn(job, HOLDER), {})
        return None

    async def _request_stop(self, job: Object) -> float | None:
        """First the mark: the next leader, or `kopt off`, then knows whose stop it is."""
        state = replace(self._new_state(job), phase="stop")
        await self._write(job, {"metadata": hold_metadata(HOLDER, {})}, {STATE_ANNOTATION: state.to_json()})
        self._emit_event(
            job,
            "StoppedForDryRun",
            "Its queue has admitted it with an unchecked request, and none of its containers has "
            "started: it is stopped, and continues when its size is known.",
        )
        return _SOON_S

    async def _stop_admitted(self, job: Object, snapshot: JobSnapshot, state: State) -> float | None:
        """One step of: Kueue stops what it had admitted, and it is parked."""
        if snapshot.admitted:
            if not snapshot.untouched and not await self._queues.stopping(job):
                return await self._release_as_written(job, state, "Its pods have started: it continues unchanged.")
            if await self._queues.stop(self._fence, job):
                return _SOON_S
            return await self._release_as_written(job, state, "It has no Workload by which its queue could stop it.")
        if not is_changeable(job):
            return _SOON_S
        # Only now is the template the user's again. Its Workload stays inactive until the Job is released: active, it
        # would be admitted where it was, as Kueue does not follow a queue label then.
        after = replace(self._new_state(job), since_s=state.since_s, stopped=True)
        await self._write(job, hold(JOBS, job, HOLDER), {STATE_ANNOTATION: after.to_json()})
        return _SOON_S

    async def _emit_refusal(self, job: Object, why: str) -> None:
        if text(job, "metadata", "annotations", REASON_ANNOTATION) != why:
            await self._write(job, {}, {REASON_ANNOTATION: why})
            self._emit_event(job, "NotProfiled", why)

    async def _held_job(self, job: Object, snapshot: JobSnapshot, state: State, kind: JobType | None) -> float | None:
        limits = self._settings.profiling
        if state.phase == "retry" and not snapshot.finished and not is_changeable(job):
            # Its own request, too, can be given back only then.
            return await self._stop(job, snapshot, state)
        if snapshot.admitted and not snapshot.finished and state.phase not in ("retry", "stop"):
            return await self._release_as_written(job, state, "Its queue had admitted it already.")
        if (
            snapshot.finished
            or snapshot.mode is not Mode.ENFORCE
            or snapshot.opted_out
            or not snapshot.managed
            or kind is None
        ):
            return await self._release_as_written(job, state, "It is no longer to be held.")
        held_for_s = self._clock() - state.since_s
        if is_over_budget(held_for_s, limits):
            return await self._release_as_written(job, state, f"No dry run ended within {limits.budget_s:.0f} s.")
        if state.phase == "stop":
            return await self._stop_admitted(job, snapshot, state)
        remaining_s = max(_SOON_S, limits.budget_s - held_for_s)
        learned = self._needs.current(job, kind)
        if state.phase != "retry" and learned is None:
            try:
                await self._dry_runs.start(job, kind)
            except (Invalid, Forbidden) as error:
                if "ValidatingAdmissionPolicy" not in error.message:
                    raise
                return await self._release_as_written(job, state, f"The server refuses its dry run ({error}).")
        elif is_at_rest(job):
            if state.phase == "retry":
                return await self._next_try(job, snapshot, state, kind)
            assert learned is not None
            return await self._release_sized(job, state, await self._needs.request(job, snapshot, learned), learned)
        return remaining_s

    async def _release_sized(
        self, job: Object, state: State, ask: GpuShareRequest, learned: Learned | None
    ) -> float | None:
        peak = int(learned.run.profile.peak_bytes) if learned is not None and learned.run is not None else 0
        after = granted(state, ask, max(peak, state.need_bytes))
        retries = self._settings.profiling.retries
        changes = pass_on(JOBS, job)
        spec = (changes.get("spec") or {}) | asking(job, state, ask, retries)
        try:
            await self._write(job, changes | {"spec": spec}, annotations_of(ask, after))
        except Invalid as error:
            # Servers before 1.36 do not let a Job's resources be changed, only its annotations.
            return await self._release_as_written(job, state, f"The server does not let it be changed ({error}).")
        self._emit_event(job, "Released", ask.reason.message)
        return None

    async def _release_as_written(self, job: Object, state: State, why: str) -> float | None:
        if state.phase == "stop":
            # Before the mark is removed: afterwards nothing would show that its Workload has to run again.
            await self._queues.resume(self._fence, job)
        changes = pass_on(JOBS, job)
        spec = changes.pop("spec", {})
        if state.phase == "retry":
            # One that has ended meanwhile asks for nothing any more.
            spec = spec | restored(job, state) if is_changeable(job) else {}
        annotations = {STATE_ANNOTATION: replace(state, phase="own").to_json(), REASON_ANNOTATION: why}
        try:
            # Only Kueue requires a Job to be stopped before its queue changes, and starts it again.
            stops = spec.get("suspend") is True
            await self._write(job, changes | ({"spec": spec} if spec and not stops else {}), annotations)
        except (Invalid, Forbidden):
            if not stops:
                raise
            await self._write(job, changes | {"spec": spec}, annotations)
        self._emit_event(job, "ReleasedAsWritten", why)
        return None

    async def _sized_job(self, job: Object, state: State, *, admitted: bool) -> float | None:
        """A Job runs with a request of ours: has it run out of memory?"""
        profile = self._cluster.learned(job["metadata"]["namespace"], state.type)
        if profile is not None and self._needs.counts(profile, job) is None:
            # Another image behind the same reference: the next job of the type is profiled anew.
            await self._fence.delete(SIZING_PROFILES, profile.document)
        failed = [item for item in self._pods(job) if item.failed and item.uid not in state.seen]
        for pod in failed:
            if not (pod.out_of_memory or await self._cluster.last_log_lines(pod)):
                continue
            after = replace(state, phase="retry", since_s=self._clock()).having_observed([pod.uid])
            # What Kueue lets run is only marked here: it is stopped by its Workload, in the next step.
            held = (
                {"metadata": hold_metadata(HOLDER, {"asked": original_request_of(after)})}
                if admitted
                else hold(JOBS, job, HOLDER, original_request_of(after))
            )
            await self._write(job, held, {STATE_ANNOTATION: after.to_json()})
            self._emit_event(job, "OutOfMemory", f"Pod {pod.key[1]} ran out of GPU memory with a request of ours.")
            return _SOON_S
        own = at(state.asked, "backoff_limit")
        if failed and isinstance(own, int) and at(job, "spec", "backoffLimit") != own + state.tries:
            # It fails for reasons of its own: the tries that were added for ours are not for that.
            body: Object = {"spec": {"backoffLimit": own + state.tries}}
            after = state.having_observed(item.uid for item in failed)
            await self._write(job, body, {STATE_ANNOTATION: after.to_json()})
        return None

    async def _stop(self, job: Object, snapshot: JobSnapshot, state: State) -> float | None:
        """Wait until a Job that is to try again has stopped."""
        if not snapshot.admitted or await self._queues.stop(self._fence, job):
            return _SOON_S
        removed = {"labels": {HELD_LABEL: None}, "annotations": {UNDO_ANNOTATION: None}}
        await self._write(job, {"metadata": removed}, {STATE_ANNOTATION: replace(state, phase="own").to_json()})
        self._emit_event(job, "NotStopped", "It has no Workload by which its queue could stop it: it continues.")
        return None

    async def _next_try(self, job: Object, snapshot: JobSnapshot, state: State, kind: JobType) -> float | None:
        learned = self._needs.current(job, kind)
        run = learned.run if learned is not None else None
        attempts = Attempts(state.tries, granted_of(state), Bytes(max(0, state.need_bytes)))
        need = await self._needs.need(job, run)
        offers = await self._needs.offers(job, snapshot)
        request = after_out_of_memory(snapshot, attempts, need, run, offers, self._settings.profiling)
        # Others may have failed with the same request before it was held.
        tried = replace(state, tries=state.tries + 1).having_observed(pod.uid for pod in self._pods(job) if pod.failed)
        return await self._release_sized(job, tried, request, learned)

    def _pods(self, job: Object) -> list[JobPod]:
        return self._cluster.pods(key_of(job))

    def _new_state(self, job: Object) -> State:
        kind = job_type_of(job)
        return State("profile", self._clock(), request_of(job), type=kind.digest if kind is not None else "")

    async def _write(self, job: Object, changes: Object, annotations: Mapping[str, str]) -> Object:
        metadata = dict(changes.get("metadata") or {})
        metadata["annotations"] = {**(metadata.get("annotations") or {}), **annotations}
        return await self._fence.patch(JOBS, job, changes | {"metadata": metadata})
