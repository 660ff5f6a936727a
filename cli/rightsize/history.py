"""The changes that running pods bear, and taking one back."""

import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kopt.cli.errors import Refused
from kopt.cli.output import Answer, column, format_time
from kopt.cli.rightsize.apply import restored
from kopt.cli.rightsize.reading import running_pods
from kopt.cluster.workloads.resizing.pods import ResizedPods
from kopt.core.workload.rightsizing import Outcome, ResizeRecord

if TYPE_CHECKING:
    from kopt.cluster.client.api import Kube
    from kopt.cluster.client.resources import Object

_UNDO_S = 120.0


@dataclass(frozen=True)
class ResizeRow:
    """One change of one pod."""

    at: float = column("at", show=format_time)
    namespace: str = column("namespace")
    pod: str = column("pod")
    change: str = column("change")
    outcome: str = column("outcome")
    reason: str = column("why", drop=1)


async def history_answer(kube: "Kube", namespace: str) -> Answer:
    """Of the pods that run; those whose annotation cannot be read are named."""
    from kopt.cluster.objects.annotations import AnnotationError
    from kopt.cluster.objects.resize_history import resizes_of

    rows, remarks = [], []
    for (space, name), pod in (await running_pods(kube, namespace)).items():
        try:
            records = resizes_of(pod)
        except AnnotationError as error:
            remarks.append(f"{space}/{name}: {error}")
            continue
        rows += [
            ResizeRow(record.at_s, space, name, record.resize.text, record.outcome.value, record.reason)
            for record in records
        ]
    rows.sort(key=lambda row: (-row.at, row.namespace, row.pod))
    return Answer("resizes", rows, remarks=remarks, empty="no pod that runs was resized")


async def taken_back(kube: "Kube", namespace: str, workload: str, say: Callable[[str], None]) -> str:
    """The newest change of a workload that stands; a sentence of what was done. Raises Refused where none stands."""
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
    if record is None:
        raise Refused(f"no change of {workload} in namespace {namespace} stands")
    resized = ResizedPods(kube, bearing, record.resize, time.time, record.at_s)
    for each in await restored(resized, "Taken back by hand.", _UNDO_S, say):
        say(f"{each.pod} was left as it is: {each.why}")
    return f"taken back: {record.resize.text}, of {len(bearing)} pods"


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
