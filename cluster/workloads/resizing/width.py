"""Writes a change of an elastic job's width on its object, and takes it back: through the API server alone.

Only a width that is what was seen is changed (a JSON patch that tests it), so that what others have set stays.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING

from kopt.cluster.workloads.resizing.pods import NotDone
from kopt.core.workload.rightsizing import ChangeRecord, Outcome, WidthChange, WidthRecord

if TYPE_CHECKING:
    from kopt.cluster.client.api import Kube
    from kopt.cluster.client.resources import Object
    from kopt.cluster.workloads.resizing.elastic import JobWidth

FIELD_MANAGER = "kopt-rightsize"
_POLL_S = 0.5
_ATTEMPTS = 5


class ResizedWidth:
    """One job, as it was when it was chosen. The same methods as ``ResizedPods``."""

    def __init__(
        self, kube: "Kube", job: "JobWidth", change: WidthChange, clock: Callable[[], float], began_s: float = 0.0
    ) -> None:
        """``began_s``: of a change that is recorded on it already."""
        self._kube, self._job, self.resize, self._clock, self._began_s = kube, job, change, clock, began_s
        self.step_seconds: tuple[float, float] | None = None
        """Of a step before and after, for the record."""

    async def document(self) -> "Object | None":
        """The job as it is now; None where it has ended, is being deleted, or another one has its name."""
        from kopt.cluster.client.api import NotFound
        from kopt.cluster.workloads.served import has_ended

        try:
            document = await self._kube.get(self._job.resource, self._job.name, self._job.namespace)
        except NotFound:
            return None
        metadata = document["metadata"]
        is_other = metadata["uid"] != self._job.uid
        return None if is_other or "deletionTimestamp" in metadata or has_ended(document) else document

    async def width(self) -> int | None:
        """None where the job has ended, or its fields contradict each other."""
        document = await self.document()
        return None if document is None else self._job.width_of(document)

    async def read(self) -> "list[Object]":
        """Its pods that run, the present ones."""
        return [
            pod
            async for pod in self._pods()
            if pod["status"].get("phase") == "Running" and "deletionTimestamp" not in pod["metadata"]
        ]

    async def check(self) -> None:
        """Whether the API server would accept the change. Raises ApiError."""
        await self._patch(self.resize, dry_run=True)

    async def open(self, at_s: float) -> None:
        """Records the change on the job, before it is made. Raises ApiError, and Conflict where another one is open,
        of the job or of one of its pods, or others have changed its width."""
        from kopt.cluster.client.api import Conflict
        from kopt.cluster.objects.resize_history import RESIZING

        self._began_s = at_s
        for attempt in range(1, _ATTEMPTS + 1):
            document = await self.document()
            if document is None or self._job.width_of(document) != self.resize.before:
                raise Conflict(409, "Conflict", f"{self._job.name} has ended, or others have changed its width")
            marked = [pod for pod in await self.read() if RESIZING in (pod["metadata"].get("labels") or {})]
            if marked or any(record.outcome is Outcome.OPEN for record in _history(document)):
                raise Conflict(409, "Conflict", f"another change of {self._job.name} is open")
            try:
                await self._record(document, ChangeRecord(self.resize, at_s))
            except Conflict:
                # Its status changes often; what matters here is read again.
                if attempt == _ATTEMPTS:
                    raise
                continue
            return

    async def apply(self) -> None:
        """Makes the change. Raises ApiError."""
        await self._patch(self.resize)

    async def refusal(self, within_s: float) -> str:
        """Waits until as many pods run as wanted; what is against it. Empty as well where the job has ended, or others
        have changed its width."""
        until_s = self._clock() + within_s
        while True:
            runs = len(await self.read())
            if runs == self.resize.after or await self.width() != self.resize.after:
                return ""
            if self._clock() >= until_s:
                why = [text async for pod in self._pods() if (text := _unscheduled(pod))]
                text = f"{runs} pods run after {within_s:.0f} s, and {self.resize.after} were to"
                return f"{text} ({why[0]})" if why else text
            await asyncio.sleep(_POLL_S)

    async def restore(self, reason: str) -> list[NotDone]:
        """The width of before, recorded as undone; what others have set since is left to them."""
        result = []
        width = await self.width()
        if width == self.resize.after:
            from kopt.cluster.client.api import Conflict

            try:
                await self._patch(self.resize.undone)
            except Conflict:
                width = await self.width()
        if width not in (None, self.resize.before, self.resize.after):
            result.append(NotDone(self._job.name, f"others have set its width to {width} since"))
        await self.finish(Outcome.UNDONE, reason)
        return result

    async def finish(self, outcome: Outcome, reason: str) -> None:
        """Records how the change ended, if the job is still there."""
        from kopt.cluster.client.api import Conflict

        record = ChangeRecord(self.resize, self._began_s, outcome, self._clock(), reason, self.step_seconds)
        for attempt in range(1, _ATTEMPTS + 1):
            document = await self.document()
            if document is None:
                return
            try:
                return await self._record(document, record)
            except Conflict:
                if attempt == _ATTEMPTS:
                    raise

    def commands(self) -> list[str]:
        """The line of kubectl that takes the change back, if the width is still what it made."""
        resource, patch = self._job.resource, json.dumps(self._operations(self.resize.undone), separators=(",", ":"))
        return [
            f"kubectl -n {self._job.namespace} patch {resource.full_name} {self._job.name} --type json -p '{patch}'"
        ]

    async def _patch(self, change: WidthChange, *, dry_run: bool = False) -> None:
        from kopt.cluster.client.api import ApiError, Conflict, Patch
        from kopt.cluster.runtime.audit import audit_write

        job = self._job
        operations = self._operations(change)
        try:
            document = await self._kube.patch(
                job.resource,
                job.name,
                operations,
                job.namespace,
                kind=Patch.JSON,
                field_manager=FIELD_MANAGER,
                dry_run=dry_run,
            )
        except ApiError as error:
            if (width := await self.width()) != change.before:
                now = "has ended" if width is None else f"has {width} workers by now"
                raise Conflict(409, "Conflict", f"{job.name} {now}, and was to have {change.before}") from error
            raise
        if not dry_run:
            widths = [{"width": each} for each in (change.before, change.after)]
            audit_write("patch", job.resource, document["metadata"], *widths)

    def _operations(self, change: WidthChange) -> list["Object"]:
        paths = ["/" + "/".join(path) for path in self._job.fields]
        return [
            {"op": "test", "path": "/metadata/uid", "value": self._job.uid},
            *({"op": "test", "path": path, "value": change.before} for path in paths),
            *({"op": "replace", "path": path, "value": change.after} for path in paths),
        ]

    async def _pods(self) -> AsyncIterator["Object"]:
        from kopt.cluster.client.resources import PODS

        async for page in self._kube.pages(PODS, self._job.namespace):
            for pod in page.items:
                if any(each.get("uid") == self._job.uid for each in pod["metadata"].get("ownerReferences") or ()):
                    yield pod

    async def _record(self, document: "Object", record: WidthRecord) -> None:
        """Raises Conflict where the job has changed since it was read."""
        from kopt.cluster.objects.resize_history import RESIZES, RESIZING, written

        metadata, is_open = document["metadata"], record.outcome is Outcome.OPEN
        before = [each for each in _history(document) if (each.resize, each.at_s) != (record.resize, record.at_s)]
        changes = {
            "uid": metadata["uid"],
            "resourceVersion": metadata["resourceVersion"],
            "labels": {RESIZING: "open" if is_open else None},
            "annotations": {RESIZES: written([record, *before])},
        }
        job = self._job
        await self._kube.patch(
            job.resource, job.name, {"metadata": changes}, job.namespace, field_manager=FIELD_MANAGER
        )


def _unscheduled(pod: "Object") -> str:
    conditions = pod["status"].get("conditions") or ()
    return next((str(each.get("message", "")) for each in conditions if each.get("reason") == "Unschedulable"), "")


def _history(document: "Object") -> list[WidthRecord]:
    """Empty where others wrote nonsense: what is to be put back does not hang on it."""
    from kopt.cluster.objects.annotations import AnnotationError
    from kopt.cluster.objects.resize_history import widths_of

    try:
        return widths_of(document)
    except AnnotationError:
        return []
