"""The webhook's part of staging: a workload that requests data is held at its creation, before its queue sees it.

Only while the controller renews its Lease: nothing is held that would not be released.
"""

import asyncio
import contextlib
import time
from collections.abc import Callable

from kopt.cluster.client.api import Kube
from kopt.cluster.client.errors import ApiError
from kopt.cluster.client.resources import KUEUE_WORKLOADS, LEASES, PODS, Object
from kopt.cluster.holds.hold import HOLDABLE, hold_metadata, holder_of, parked, queue_of
from kopt.cluster.objects.custom.staged_data import REQUESTS_DATA_LABEL, STAGING_ANNOTATION, request_of, staging_report
from kopt.cluster.objects.fields import at, items
from kopt.cluster.objects.json_patch import JsonPatch
from kopt.cluster.objects.leases import lease_until
from kopt.cluster.runtime.informer import Informer
from kopt.cluster.runtime.switches import OPEN, Gate
from kopt.cluster.workloads.workload import Workload
from kopt.controllers.staging.views import GATE, HOLDER
from kopt.core.decision import Mode
from kopt.core.reason import Reason
from kopt.core.staging.staged_data import Request
from kopt.policies.staging.holding import DataWorkload, Hold, hold_for

LEASE = "kopt-staging"
_KUEUE_CHECK_S = 60.0
_WAITS = "It waits for its data."
_STOPPED_BY_FIELD = frozenset((resource.group, resource.kind) for resource in HOLDABLE)
"""Owners of pods that are held themselves."""


class StagingAtAdmission:
    """Answers from memory; ``run`` keeps it up to date until cancelled. ``namespace`` is the controller's."""

    def __init__(self, kube: Kube, namespace: str, clock: Callable[[], float] = time.time, gate: Gate = OPEN) -> None:
        self._kube, self._clock, self._has_kueue, self._gate = kube, clock, False, gate
        self._leases: Informer[float] = Informer(
            kube, LEASES, namespace=namespace, keep=lease_until, field_selector=f"metadata.name={LEASE}"
        )

    async def run(self) -> None:
        await asyncio.gather(self._leases.run(), self._watch_for_kueue())

    @property
    def controller_lives(self) -> bool:
        return any(until_s >= self._clock() for until_s in self._leases.objects.values())

    def hold(self, patch: JsonPatch, workload: Workload, mode: Mode, *, managed: bool) -> Reason | None:
        """Write the hold into a workload that is being created; the reason it then has."""
        document, kind = workload.document, HOLDABLE.get(workload.kind.resource)
        request = request_of({"metadata": document.get("metadata") or {}})
        if not request or not self.controller_lives:
            return None
        mode = self._gate.mode("staging", workload.owner, mode)
        if workload.kind.resource == PODS:
            return self._hold_pod(patch, workload, mode, request, managed=managed)
        if kind is None:
            return None
        queue = queue_of(document)
        value = at(document, *kind.path, kind.field)
        if kind.queued and queue and not self._has_kueue:
            # A parked workload would not be stopped.
            return None
        stopped = not queue and value is not None and value != kind.runs
        asker = DataWorkload(
            mode,
            managed,
            queued=kind.queued and bool(queue),
            opted_out=workload.opts_out,
            stopped=stopped,
            ours=bool(holder_of(document)),
        )
        if hold_for(asker, ready=False) is not Hold.HOLD:
            return None
        parks = kind.queued and queue
        if not parks:
            patch.put((*kind.path, kind.field), not kind.runs)
        self._write(patch, parked(HOLDER, queue) if parks else hold_metadata(HOLDER, {kind.field: kind.runs}), request)
        return Reason("DATA_MISSING", _WAITS)

    def _hold_pod(
        self, patch: JsonPatch, workload: Workload, mode: Mode, request: Request, *, managed: bool
    ) -> Reason | None:
        """A pod of its own, or of what has no field to be stopped by, waits behind a gate; one in a queue of Kueue's
        does not, as it would keep quota while it waits."""
        if mode is Mode.OBSERVE or not managed or workload.opts_out or workload.controller in _STOPPED_BY_FIELD:
            return None
        patch.put(("metadata", "labels", REQUESTS_DATA_LABEL), "true")
        gates = [item for _, item in items(workload.document, "spec", "schedulingGates")]
        queued = self._has_kueue and queue_of({"metadata": workload.document.get("metadata") or {}})
        if mode is not Mode.ENFORCE or queued or holder_of(workload.document) or {"name": GATE} in gates:
            return None
        patch.put(("spec", "schedulingGates"), [*gates, {"name": GATE}])
        self._write(patch, hold_metadata(HOLDER, {"gates": [GATE]}), request)
        return Reason("DATA_MISSING", _WAITS)

    def _write(self, patch: JsonPatch, marked: Object, request: Request) -> None:
        """The metadata of a hold, with the report on its data."""
        marked["annotations"][STAGING_ANNOTATION] = staging_report(
            "held", request, [], "", request.problem, self._clock()
        )
        for section, values in marked.items():
            for name, item in values.items():
                patch.put(("metadata", section, name), item)

    async def _watch_for_kueue(self) -> None:
        while True:
            with contextlib.suppress(ApiError):
                self._has_kueue = await self._kube.preferred(KUEUE_WORKLOADS) is not None
            await asyncio.sleep(_KUEUE_CHECK_S)
