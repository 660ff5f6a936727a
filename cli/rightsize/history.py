"""The changes that running pods and elastic jobs bear, and taking one back."""

import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kopt.cli.errors import Refused
from kopt.cli.output import Answer, column, format_time
from kopt.cli.rightsize.apply import Resized, restored
from kopt.cli.rightsize.reading import running_pods
from kopt.cluster.client.resources import key_of
from kopt.cluster.workloads.resizing.pods import ResizedPods
from kopt.cluster.workloads.resizing.width import ResizedWidth
from kopt.core.workload.rightsizing import AnyRecord, Outcome, ResizeRecord, WidthRecord

if TYPE_CHECKING:
    from kopt.cluster.client.api import Kube
    from kopt.cluster.client.resources import Object, Resource
    from kopt.cluster.workloads.resizing.elastic import JobWidth

_UNDO_S = 120.0


@dataclass(frozen=True)
class ResizeRow:
    """One change of one pod, or of a job's width."""

    at: float = column("at", show=format_time)
    namespace: str = column("namespace")
    pod: str = column("pod or job")
    change: str = column("change")
    outcome: str = column("outcome")
    reason: str = column("why", drop=1)


async def history_answer(kube: "Kube", namespace: str) -> Answer:
    """Of pods that run and of elastic jobs; those whose annotation cannot be read are named."""
    from kopt.cluster.objects.annotations import AnnotationError
    from kopt.cluster.objects.resize_history import changes_of

    rows, remarks = [], []
    bearers = [(*key, pod) for key, pod in (await running_pods(kube, namespace)).items()]
    bearers += [(*key_of(job), job) for _, job in await _jobs(kube, namespace)]
    for space, name, document in bearers:
        try:
            records = changes_of(document)
        except AnnotationError as error:
            remarks.append(f"{space}/{name}: {error}")
            continue
        rows += [
            ResizeRow(record.at_s, space, name, record.resize.text, record.outcome.value, record.reason)
            for record in records
        ]
    rows.sort(key=lambda row: (-row.at, row.namespace, row.pod))
    return Answer("resizes", rows, remarks=remarks, empty="no pod that runs was resized, and no job has another width")


async def taken_back(
    kube: "Kube", namespace: str, workload: str, say: Callable[[str], None], *, at_once: bool = False
) -> str:
    """The newest change of a workload that stands; a sentence of what was done. Raises Refused where none stands, and,
    unless ``at_once``, where that would start workers again at a moment that is not known to be safe."""
    from kopt.controllers.overview.running_workloads import running

    pods = await running_pods(kube, namespace)
    of_it = [
        pods[namespace, name]
        async for pod_kind in running(kube, namespace)
        if pod_kind.label.lower() == workload.lower()
        for name in pod_kind.pod_names
        if (namespace, name) in pods
    ]
    record, bearing = _newest(of_it)
    width = await _newest_width(kube, namespace, workload)
    resized: Resized
    if width is not None and (record is None or width[1].at_s > record.at_s):
        job, own = width
        change: AnyRecord = own
        resized_width = ResizedWidth(kube, job, own.resize, time.time, own.at_s, step_seconds=own.step_seconds)
        if not at_once:
            await _require_safe(resized_width)
        resized, of = resized_width, workload
    elif record is not None:
        change = record
        resized, of = ResizedPods(kube, bearing, record.resize, time.time, record.at_s), f"{len(bearing)} pods"
    else:
        raise Refused(f"no change of {workload} in namespace {namespace} stands")
    not_done = await restored(resized, "Taken back by hand.", _UNDO_S, say)
    for each in not_done:
        say(f"{each.name} was left as it is: {each.why}")
    return f"taken back: {change.resize.text}, of {of}"


async def _require_safe(resized: ResizedWidth) -> None:
    """Raises Refused. Where others have set the width since, or no worker runs, no worker is started again."""
    from kopt.cluster.checkpoints.safe_moment import status_of

    pods = await resized.read()
    if not pods or await resized.width() != resized.resize.after:
        return
    status = status_of(pods, time.time())
    if status is None or not status.safe:
        state = "" if status is None else status.state.lower()
        why = f"that is not safe now ({state})" if state else "no log agent says whether that is safe now"
        raise Refused(
            f"its workers would start again from their last checkpoint, and {why}; try again later, or --now does it "
            "all the same"
        )


async def _jobs(kube: "Kube", namespace: str) -> "list[tuple[Resource, Object]]":
    """Jobs of the kinds whose width can change that bear a change."""
    from kopt.cluster.client.api import Forbidden, NotFound
    from kopt.cluster.objects.fields import mapping
    from kopt.cluster.objects.resize_history import RESIZES
    from kopt.cluster.workloads.resizing.elastic import ELASTIC_KINDS

    result = []
    for resource in ELASTIC_KINDS:
        try:
            async for page in kube.pages(resource, namespace):
                result += [(resource, job) for job in page.items if RESIZES in mapping(job, "metadata", "annotations")]
        except (NotFound, Forbidden):
            continue
    return result


async def _newest_width(kube: "Kube", namespace: str, workload: str) -> "tuple[JobWidth, WidthRecord] | None":
    """Of the job that is named."""
    from kopt.cluster.objects.resize_history import widths_of
    from kopt.cluster.workloads.resizing.elastic import width_of_object

    for resource, document in await _jobs(kube, namespace):
        if f"{resource.kind}/{document['metadata']['name']}".lower() == workload.lower():
            standing = [record for record in widths_of(document) if record.outcome is not Outcome.UNDONE]
            if standing:
                return width_of_object(resource, document), max(standing, key=lambda record: record.at_s)
    return None


def _newest(pods: "list[Object]") -> "tuple[ResizeRecord | None, list[Object]]":
    """And the pods that bear it."""
    from kopt.cluster.objects.resize_history import resizes_of

    bearing: defaultdict[tuple[float, str], list[Object]] = defaultdict(list)
    records: dict[tuple[float, str], ResizeRecord] = {}
    for pod in pods:
        for record in resizes_of(pod):
            if record.outcome is not Outcome.UNDONE:
                key = record.at_s, record.resize.text
                records[key] = record
                bearing[key].append(pod)
    if not records:
        return None, []
    newest = max(records)
    return records[newest], bearing[newest]
