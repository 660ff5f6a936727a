"""What the sizing controller gives the webhook: sizes that dry runs have shown, and holding as a Job is created.

A Job that is held at its creation has no pod that starts and is stopped again, and no queue that admits it meanwhile.
This is done only while the controller renews its Lease: otherwise no controller would release the Job.
"""

import asyncio
import contextlib
import time
from collections.abc import Callable
from dataclasses import replace

from kopt.cluster.client.api import Kube
from kopt.cluster.client.errors import ApiError
from kopt.cluster.client.resources import JOBS, KUEUE_WORKLOADS, LEASES
from kopt.cluster.holds.hold import hold_metadata, holder_of, parked, queue_of, turn
from kopt.cluster.holds.original_request import request_of
from kopt.cluster.objects.json_patch import JsonPatch
from kopt.cluster.objects.leases import lease_until
from kopt.cluster.objects.namespace import NamespaceSettings
from kopt.cluster.runtime.informer import Change, Informer
from kopt.cluster.runtime.isolation import Isolation
from kopt.cluster.runtime.switches import OPEN, Gate
from kopt.cluster.workloads.memory_need import Need
from kopt.cluster.workloads.workload import Workload
from kopt.controllers.sizing.jobs import (
    HOLDER,
    STATE_ANNOTATION,
    State,
    as_written,
    job_type_of,
    snapshot_of,
)
from kopt.controllers.sizing.profiles import SIZING_PROFILES, Learned, learned_of
from kopt.core.decision import Mode
from kopt.core.reason import Reason
from kopt.policies.sizing.profiling import ProfilingSettings, has_expired, need_of, waits_for_dry_run

LEASE = "kopt-sizing"
_KUEUE_CHECK_S = 60.0


class SizingAtAdmission:
    """Answers from memory; ``run`` keeps it up to date until cancelled. ``namespace`` is the controller's."""

    def __init__(
        self,
        kube: Kube,
        namespace: str,
        settings: ProfilingSettings | None = None,
        clock: Callable[[], float] = time.time,
        isolation: Isolation | None = None,
        gate: Gate = OPEN,
    ) -> None:
        self._gate = gate
        self._kube, self._settings, self._clock = kube, settings or ProfilingSettings(), clock
        self._has_kueue = False
        self._profiles: Informer[Learned] = Informer(kube, SIZING_PROFILES, keep=learned_of)
        self._leases: Informer[float] = Informer(
            kube, LEASES, namespace=namespace, keep=lease_until, field_selector=f"metadata.name={LEASE}"
        )
        self._profiles.isolation = isolation or self._profiles.isolation
        self._by_digest: dict[tuple[str, str], Learned] = {}
        self._profiles.subscribe(self._changed)

    async def run(self) -> None:
        await asyncio.gather(self._profiles.run(), self._leases.run(), self._watch_for_kueue())

    @property
    def controller_lives(self) -> bool:
        return any(until_s >= self._clock() for until_s in self._leases.objects.values())

    def need(self, workload: Workload) -> Need | None:
        """What a steady dry run of the Job's type has shown, where no endpoint says more."""
        learned = self._learned(workload)
        prediction = need_of(None, learned.run, self._settings) if learned is not None else None
        if prediction is None or learned is None or learned.run is None:
            return None
        return Need(prediction, learned.run.profile.peak_bytes, learned.run.profile.gpu)

    def hold(self, patch: JsonPatch, workload: Workload, mode: Mode, *, managed: bool) -> Reason | None:
        """Write the hold into a Job that is being created, if the policy wants it; the reason it then has."""
        if workload.kind.resource != JOBS or not self.controller_lives or not self._profiles.synced.is_set():
            return None
        mode = self._gate.mode("profiling", workload.owner, mode)
        queue = queue_of(workload.document)
        snapshot = snapshot_of(workload.document, NamespaceSettings(managed), mode)
        # Kueue's own webhook runs later; without Kueue nothing would stop a parked Job.
        snapshot = replace(snapshot, mode=mode, admitted=bool(queue) and not self._has_kueue, held_by_others=False)
        is_measured = self._learned(workload) is not None
        decision = waits_for_dry_run(snapshot, measured=is_measured, settings=self._settings)
        if not decision.yes:
            return None
        holder = holder_of(workload.document)
        if holder == HOLDER:
            # Reviews come twice where Kueue's webhook has changed the Job after ours.
            return decision.reason
        if holder:
            for name, value in turn(workload.document, HOLDER).items():
                patch.put(("metadata", "annotations", name), value)
            return decision.reason
        kind_of_job = job_type_of(workload.document)
        state = State(
            "profile",
            self._clock(),
            request_of(workload.document),
            type=kind_of_job.digest if kind_of_job is not None else "",
        )
        if not queue:
            patch.put(("spec", "suspend"), True)
        written = parked(HOLDER, queue) if queue else hold_metadata(HOLDER, {"suspend": False})
        for kind, values in written.items():
            for name, value in values.items():
                patch.put(("metadata", kind, name), value)
        patch.put(("metadata", "annotations", STATE_ANNOTATION), state.to_json())
        return decision.reason

    async def _watch_for_kueue(self) -> None:
        while True:
            with contextlib.suppress(ApiError):
                self._has_kueue = await self._kube.preferred(KUEUE_WORKLOADS) is not None
            await asyncio.sleep(_KUEUE_CHECK_S)

    def _learned(self, workload: Workload) -> Learned | None:
        if workload.kind.resource != JOBS:
            return None
        kind = job_type_of(as_written(workload.document))
        learned = self._by_digest.get((workload.namespace, kind.digest)) if kind is not None else None
        if learned is None:
            return None
        expired = has_expired(
            self._clock() - learned.at_s, failed=learned.failed, image="", image_now="", settings=self._settings
        )
        return None if expired else learned

    def _changed(self, change: Change[Learned]) -> None:
        profile = change.new or change.old
        assert profile is not None
        if change.new is not None:
            self._by_digest[profile.namespace, profile.digest] = change.new
        else:
            self._by_digest.pop((profile.namespace, profile.digest), None)
