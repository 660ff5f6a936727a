"""What the reconciler is given: settings and fenced writes."""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from kopt.cluster.client.api import AlreadyExists, ApiError, Kube, NotFound
from kopt.cluster.client.resources import LENDING_POOLS, PODS, VOLCANO_COMMANDS, VOLCANO_JOBS, Object, Resource
from kopt.cluster.holds.hold import release
from kopt.cluster.objects.volcano import RESUME, STOPPING, command, phase_of
from kopt.cluster.runtime.lease import Fence
from kopt.controllers.lending.pool import observed_pod
from kopt.controllers.lending.state import LiveCluster
from kopt.controllers.lending.views import ObservedPod
from kopt.policies.preemption import PreemptionSettings


@dataclass(frozen=True)
class ControllerSettings:
    """Times in seconds."""

    refresh_s: float = 60.0
    """How often forecasts are requested; the grid on which promises are made and learned from."""
    stale_s: float = 300.0
    """Older forecasts count as none."""
    history_s: float = 300.0
    policy: PreemptionSettings = field(default_factory=lambda: PreemptionSettings(stale_s=75.0, search_steps=2_000))
    """Of the choice of victims. Statuses that have not changed are written every minute."""
    workload_may_lower: bool | None = None
    """As ``policies.admission.mode.effective_mode`` takes it."""


class Errors:
    """Tries each of several writes, whatever becomes of the others; ``raise_first`` raises the first error."""

    def __init__(self) -> None:
        self._first: ApiError | None = None

    @contextlib.contextmanager
    def kept(self) -> Iterator[None]:
        try:
            yield
        except ApiError as error:
            self._first = self._first or error

    def raise_first(self) -> None:
        if self._first is not None:
            raise self._first


class Writer:
    """Fenced writes that the cluster's state shows at once: informers may be later. All raise Conflict when the
    object has changed since it was seen."""

    def __init__(self, fence: Fence, cluster: LiveCluster, kube: Kube) -> None:
        self._fence, self._cluster, self._kube = fence, cluster, kube

    async def read_pod(self, pod: ObservedPod) -> ObservedPod | None:
        """The pod as the API server has it now; None where it is gone or has ended."""
        try:
            fresh = observed_pod(await self._kube.get(PODS, pod.key[1], pod.key[0]))
        except NotFound:
            return None
        return fresh and replace(fresh, gpu_pod=self._cluster.claims.settled(fresh.gpu_pod))

    async def patch(self, resource: Resource, document: Object, changes: Object) -> None:
        self._cluster.noted(resource, await self._fence.patch(resource, document, changes))

    async def order(self, job: Object, action: str, reason: str) -> None:
        """Have Volcano abort or resume a Job; an existing Command is left alone."""
        with contextlib.suppress(AlreadyExists):
            await self._fence.create(VOLCANO_COMMANDS, command(job, action, reason))

    async def give_back(self, resource: Resource, document: Object) -> None:
        """Release a held workload."""
        if resource == VOLCANO_JOBS and phase_of(document) in STOPPING:
            await self.order(document, RESUME, "It is no longer held.")
        await self.patch(resource, document, release(resource, document))

    async def put_status(self, document: Object, status: Object) -> None:
        body = document | {"status": status}
        written = await self._fence.replace(LENDING_POOLS, body, subresource="status")
        self._cluster.noted(LENDING_POOLS, written)
