"""Writes a change of an elastic job's width on its object, and takes it back: through the API server alone.

Only a width that is what was seen is changed (a JSON patch that tests it), so that what others have set stays.
"""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TYPE_CHECKING

from kopt.cluster.client.resources import JOBS
from kopt.cluster.objects.resize_history import RESIZES, RESIZING, widths_of, written
from kopt.cluster.workloads.kinds import PYTORCH_JOBS
from kopt.cluster.workloads.resizing.pods import NotDone
from kopt.core.workload.rightsizing import ChangeRecord, Outcome, WidthChange, WidthRecord

if TYPE_CHECKING:
    from kopt.cluster.client.api import Kube
    from kopt.cluster.client.resources import Object
    from kopt.cluster.workloads.resizing.elastic import JobWidth

FIELD_MANAGER = "kopt-rightsize"
_POLL_S = 2.0
_ATTEMPTS = 5
_WITHDRAW_S = 30.0
_JOB_LABELS = {JOBS.group: "batch.kubernetes.io/job-name", PYTORCH_JOBS.group: "training.kubeflow.org/job-name"}
"""Which their controllers write on pods."""


class ResizedWidth:
    """One job, as it was when it was chosen. The same methods as ``ResizedPods``."""

    def __init__(
        self,
        kube: "Kube",
        job: "JobWidth",
        change: WidthChange,
        clock: Callable[[], float],
        began_s: float = 0.0,
        *,
        why_not: Callable[[], Awaitable[str]] | None = None,
        step_seconds: tuple[float, float] | None = None,
    ) -> None:
        """``began_s``: of a change that is recorded on it already. ``why_not``: what by now is against the change;
        asked before it is recorded. ``step_seconds``: of a step before and after, for the record."""
        self._kube, self._job, self.resize, self._clock, self._began_s = kube, job, change, clock, began_s
        self._why_not, self.step_seconds = why_not, step_seconds
        self.is_begun = began_s > 0
        """Whether the width may have been written."""

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
        of the job or of one of its pods, others have changed its width, or something is against it by now: then, and
        where it is cancelled, nothing is recorded."""
        from kopt.cluster.client.api import ApiError

        # As records hold it, by which it is known again.
        self._began_s = float(int(at_s))
        try:
            await self._opened()
        except (ApiError, asyncio.CancelledError):
            # The server may have stored what it did not answer to. A task of its own: it is not cancelled as well.
            await asyncio.shield(asyncio.create_task(self._withdrawn()))
            raise

    async def _opened(self) -> None:
        from kopt.cluster.client.api import Conflict

        for attempt in range(1, _ATTEMPTS + 1):
            document = await self.document()
            if document is None or self._job.width_of(document) != self.resize.before:
                raise Conflict(409, "Conflict", f"{self._job.name} has ended, or others have changed its width")
            history = _history(document)
            if any(record.outcome is Outcome.OPEN and not self._is_own(record) for record in history):
                raise Conflict(409, "Conflict", f"another change of {self._job.name} is open")
            if not any(map(self._is_own, history)):
                # What is seen from here on is newer than the document, whose version the record is bound to.
                if self._why_not is not None and (why := await self._why_not()):
                    raise Conflict(409, "Conflict", f"{self._job.name} is not as it was planned for: {why}")
                try:
                    await self._record(document, ChangeRecord(self.resize, self._began_s))
                except Conflict:
                    # Its status changes often; what matters here is read again.
                    if attempt == _ATTEMPTS:
                        raise
                    continue
            # Who changes its pods marks them, and looks at the job afterwards: one of both sees the other.
            if any(RESIZING in (pod["metadata"].get("labels") or {}) for pod in await self.read()):
                raise Conflict(409, "Conflict", f"another change of {self._job.name} is open, of its pods")
            return

    async def withdraw(self) -> None:
        """Takes the record of a change that was not begun off the job, if it is there. Raises ApiError."""
        from kopt.cluster.client.api import Conflict

        for attempt in range(1, _ATTEMPTS + 1):
            document = await self.document()
            if document is None or not any(map(self._is_own, _history(document))):
                return
            try:
                return await self._record(document, None)
            except Conflict:
                if attempt == _ATTEMPTS:
                    raise

    async def _withdrawn(self) -> None:
        """As long as the API server may not answer for; what is left then stands as open."""
        from kopt.cluster.client.api import ApiError
        from kopt.cluster.runtime.backoff import Backoff

        backoff, until_s = Backoff(0.5, 5.0), time.monotonic() + _WITHDRAW_S
        while True:
            try:
                return await self.withdraw()
            except ApiError:
                if time.monotonic() >= until_s:
                    return
                await asyncio.sleep(backoff.next_s())

    async def apply(self) -> None:
        """Makes the change. Raises ApiError."""
        self.is_begun = True
        await self._patch(self.resize)

    async def refusal(self, within_s: float) -> str:
        """Waits until as many pods run as wanted; what is against it. Empty as well where the job has ended, or others
        have changed its width."""
        until_s = self._clock() + within_s
        while True:
            runs = len(await self.read())
            if runs == self.resize.after or await self.width() != self.resize.after:
                return ""
            left_s = until_s - self._clock()
            if left_s <= 0:
                why = [text async for pod in self._pods() if (text := _unscheduled(pod))]
                text = f"{runs} pods run after {within_s:.0f} s, and {self.resize.after} were to"
                return f"{text} ({why[0]})" if why else text
            await asyncio.sleep(min(_POLL_S, left_s))

    async def restore(self, reason: str) -> list[NotDone]:
        """The width of before, recorded as undone; what others have set since is left to them. Of what was not begun
        nothing stays recorded."""
        if not self.is_begun:
            await self.withdraw()
            return []
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

        selector = f"{_JOB_LABELS[self._job.resource.group]}={self._job.name}"
        async for page in self._kube.pages(PODS, self._job.namespace, label_selector=selector):
            for pod in page.items:
                if any(each.get("uid") == self._job.uid for each in pod["metadata"].get("ownerReferences") or ()):
                    yield pod

    def _is_own(self, record: WidthRecord) -> bool:
        return (record.resize, record.at_s) == (self.resize, self._began_s)

    async def _record(self, document: "Object", record: WidthRecord | None) -> None:
        """In the place of an older one of the same change; None takes that away. Raises Conflict where the job has
        changed since it was read."""
        metadata, is_open = document["metadata"], record is not None and record.outcome is Outcome.OPEN
        records = [each for each in _history(document) if not self._is_own(each)]
        if record is not None:
            records.insert(0, record)
        changes = {
            "uid": metadata["uid"],
            "resourceVersion": metadata["resourceVersion"],
            "labels": {RESIZING: "open" if is_open else None},
            "annotations": {RESIZES: written(records) if records else None},
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

    try:
        return widths_of(document)
    except AnnotationError:
        return []
