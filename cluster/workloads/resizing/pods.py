"""Writes a change on the pods of a workload, and takes it back: through the API server alone."""

import asyncio
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kopt.core.workload.rightsizing import Outcome, Resize, ResizeRecord

if TYPE_CHECKING:
    from kopt.cluster.client.api import Kube
    from kopt.cluster.client.resources import Object

_POLL_S = 0.5


@dataclass(frozen=True)
class NotDone:
    """A pod or a job of which something could not be done, and why."""

    name: str
    why: str


class ResizedPods:
    """The pods of one workload, as they were when it was chosen."""

    def __init__(
        self,
        kube: "Kube",
        pods: "Sequence[Object]",
        resize: Resize,
        clock: Callable[[], float],
        began_s: float = 0.0,
        require_term: Callable[[], None] | None = None,
    ) -> None:
        """``began_s``: of a change that is recorded on them already. ``require_term``: of a controller that leads;
        called before each write, it raises where it leads no more, and its records have a proof."""
        self._began_s, self._require_term = began_s, require_term
        self._kube, self.resize, self._clock = kube, resize, clock
        self._namespace: str = pods[0]["metadata"]["namespace"]
        self._uids = {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in pods}

    @property
    def names(self) -> list[str]:
        return sorted(self._uids)

    async def read(self) -> "list[Object]":
        """Those that still run; another pod under the same name is not one of them."""
        from kopt.cluster.client.api import NotFound
        from kopt.cluster.client.resources import PODS

        result = []
        for name, uid in self._uids.items():
            try:
                pod = await self._kube.get(PODS, name, self._namespace)
            except NotFound:
                continue
            ended = pod["status"].get("phase") in ("Succeeded", "Failed")
            if pod["metadata"]["uid"] == uid and not ended:
                result.append(pod)
        return result

    async def check(self) -> None:
        """Whether the API server would accept the change on each pod. Raises ApiError."""
        for name in self.names:
            await self._patch(name, self.resize, dry_run=True)

    async def open(self, at_s: float) -> None:
        """Records the change on each pod, before it is made. Raises ApiError, and Conflict where another one is open:
        then none is recorded."""
        from kopt.cluster.client.api import ApiError, Conflict

        self._began_s, opened = at_s, []
        try:
            for pod in await self.read():
                name = pod["metadata"]["name"]
                if any(record.outcome is Outcome.OPEN for record in _history(pod)):
                    raise Conflict(409, "Conflict", f"another change of {name} is open")
                opened.append(pod)
                await self._record(pod, ResizeRecord(self.resize, at_s), only_as_read=True)
            # Who changes the width marks the job, and looks at its pods afterwards: one of both sees the other.
            await self._require_width_settled(opened)
        except (ApiError, asyncio.CancelledError):
            for pod in opened:
                await self.close(pod, Outcome.UNDONE, "It was not begun.")
            raise

    async def _require_width_settled(self, pods: "Sequence[Object]") -> None:
        """Raises Conflict where the width of the pods' job is being changed."""
        from kopt.cluster.client.api import Conflict, Forbidden, NotFound
        from kopt.cluster.objects.fields import mapping
        from kopt.cluster.objects.resize_history import RESIZING
        from kopt.cluster.workloads.resizing.elastic import ELASTIC_KINDS

        owners = {
            (resource, owner["name"], owner["uid"])
            for pod in pods
            for owner in pod["metadata"].get("ownerReferences") or ()
            for resource in ELASTIC_KINDS
            if (owner["apiVersion"].rpartition("/")[0], owner["kind"]) == (resource.group, resource.kind)
        }
        for resource, name, uid in owners:
            try:
                job = await self._kube.get(resource, name, self._namespace)
            except (NotFound, Forbidden):
                continue
            if job["metadata"]["uid"] == uid and RESIZING in mapping(job, "metadata", "labels"):
                raise Conflict(409, "Conflict", f"the width of {name} is being changed")

    async def apply(self) -> None:
        """Makes the change. Raises ApiError on the way."""
        for name in self.names:
            await self._patch(name, self.resize)

    async def refusal(self, within_s: float) -> str:
        """Waits until the kubelets have made the change; what one of them says against it, else empty."""
        from kopt.cluster.workloads.pod_resize import ResizeState, state_of_all

        until_s = self._clock() + within_s
        while True:
            state, message = state_of_all(await self.read(), self.resize)
            if state is not ResizeState.PENDING:
                return message if state is ResizeState.REFUSED else ""
            if self._clock() >= until_s:
                return f"no kubelet has made the change within {within_s:.0f} s{message and f' ({message})'}"
            await asyncio.sleep(_POLL_S)

    async def restore(self, reason: str) -> list[NotDone]:
        """Every pod as it was before, and recorded as undone; what others have changed since is left to them."""
        from kopt.cluster.workloads.pod_resize import bounds_of

        undone, result = self.resize.undone, []
        for pod in await self.read():
            name = pod["metadata"]["name"]
            container = next(each for each in pod["spec"]["containers"] if each["name"] == undone.container)
            bounds = bounds_of(container.get("resources") or {}, undone.lever)
            if bounds == undone.before:
                await self._patch(name, undone)
            elif bounds != undone.after:
                result.append(NotDone(name, f"others have set its {undone.lever} since"))
            await self.close(pod, Outcome.UNDONE, reason)
        return result

    async def finish(self, outcome: Outcome, reason: str) -> None:
        """Records how the change ended on every pod that still runs."""
        for pod in await self.read():
            await self.close(pod, outcome, reason)

    async def close(self, pod: "Object", outcome: Outcome, reason: str) -> None:
        """Records how the change ended."""
        await self._record(pod, ResizeRecord(self.resize, self._began_s, outcome, self._clock(), reason))

    def commands(self) -> list[str]:
        """The lines of kubectl that put every pod back."""
        from kopt.cluster.workloads.pod_resize import SUBRESOURCE, resize_patch

        patch = json.dumps(resize_patch(self.resize.undone), separators=(",", ":"))
        return [
            f"kubectl -n {self._namespace} patch pod {name} --subresource {SUBRESOURCE} -p '{patch}'"
            for name in self.names
        ]

    async def _patch(self, name: str, resize: Resize, *, dry_run: bool = False) -> None:
        from kopt.cluster.client.api import NotFound, Patch
        from kopt.cluster.client.resources import PODS
        from kopt.cluster.runtime.audit import audit_write
        from kopt.cluster.workloads.pod_resize import SUBRESOURCE, resize_patch

        if self._require_term is not None:
            self._require_term()
        changes = resize_patch(resize)
        # The uid: another pod under this name is refused as a conflict.
        body = changes | {"metadata": {"uid": self._uids[name]}}
        try:
            pod = await self._kube.patch(
                PODS, name, body, self._namespace, kind=Patch.STRATEGIC, subresource=SUBRESOURCE, dry_run=dry_run
            )
        except NotFound:
            if dry_run or not await self._is_gone(name):
                raise
            return
        if not dry_run:
            before = resize_patch(resize.undone)
            audit_write("patch", PODS, pod["metadata"], before, changes)

    async def _is_gone(self, name: str) -> bool:
        """404 is also what a server without the subresource answers."""
        return name not in {pod["metadata"]["name"] for pod in await self.read()}

    async def _record(self, pod: "Object", record: ResizeRecord, *, only_as_read: bool = False) -> None:
        from kopt.cluster.client.api import NotFound
        from kopt.cluster.client.resources import PODS
        from kopt.cluster.objects.resize_history import RESIZES, marked_closed, marked_open, written

        metadata = pod["metadata"]
        before = [each for each in _history(pod) if (each.resize, each.at_s) != (record.resize, record.at_s)]
        is_open = record.outcome is Outcome.OPEN
        sealed = self._require_term is not None
        marks = marked_open(record, metadata["uid"], sealed=sealed) if is_open else marked_closed()
        annotations = marks["annotations"] | {RESIZES: written([record, *before])}
        changes = marks | {"uid": metadata["uid"], "annotations": annotations}
        if self._require_term is not None:
            self._require_term()
        if only_as_read:
            changes["resourceVersion"] = metadata["resourceVersion"]
        try:
            await self._kube.patch(PODS, metadata["name"], {"metadata": changes}, self._namespace)
        except NotFound:
            return


def _history(pod: "Object") -> list[ResizeRecord]:
    """Empty where others wrote nonsense: what is to be put back does not hang on it."""
    from kopt.cluster.objects.annotations import AnnotationError
    from kopt.cluster.objects.resize_history import resizes_of

    try:
        return resizes_of(pod)
    except AnnotationError:
        return []
