"""``kopt classes``: what every GPU workload is for, why, and what follows from it."""

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kopt.cli.errors import Refused
from kopt.cli.open_cluster import open_cluster
from kopt.cli.options import Kubeconfig, Output
from kopt.cli.output import Answer, Format, column, show
from kopt.core.scheduling.workload_class import WorkloadClass
from kopt.core.units import WHOLE_GPU, format_span

if TYPE_CHECKING:
    from kopt.cluster.client.api import Kube
    from kopt.controllers.overview.running_workloads import PodKind
    from kopt.core.scheduling.workload_class import ClassTable

_SAVED = "kaiwo.ai/last-checkpoint-time"


def _yes(value: bool) -> str:
    return "yes" if value else "no"


@dataclass(frozen=True)
class ClassRow:
    """Pods of a workload. ``saved_s``: seconds since its last durable checkpoint, as the log agents report it; None
    where none was seen, or none is expected."""

    namespace: str = column("namespace")
    workload: str = column("workload")
    gpus: float = column("GPUs", show=lambda gpus: f"{gpus:g}")
    workload_class: str = column("class")
    preemptible: bool = column("preemptible", show=_yes, drop=3)
    placement: str = column("placement", drop=1)
    checkpoint: str = column("checkpoint", drop=2)
    why: str = column("why")
    saved_s: float | None = column("seconds since checkpoint", wide=True)
    codes: str = column("codes", wide=True)


@dataclass(frozen=True)
class TraitsRow:
    """A class and what follows from it."""

    workload_class: str = column("class")
    preemptible: bool = column("preemptible", show=_yes)
    placement: str = column("placement")
    idle_s: int = column("idle for at most", show=lambda span_s: format_span(span_s) if span_s else "any time")
    queue_points: float = column("points", show=lambda points: f"{points:g}")
    checkpoint: bool = column("writes checkpoints", show=_yes)
    also: str = column("also called", drop=0)
    means: str = column("means", drop=1)


def classes(
    table: Annotated[bool, typer.Option("--table", help="The classes, and what follows from each.")] = False,
    only: Annotated[
        WorkloadClass | None, typer.Option("--class", metavar="CLASS", help="Only workloads of this class.")
    ] = None,
    namespace: Annotated[str, typer.Option("-n", "--namespace", help="Only this namespace; default: all.")] = "",
    kubeconfig: Kubeconfig = None,
    output: Output = Format.TABLE,
) -> None:
    """List GPU workloads with their class, interactive, unattended or inference, and why it is this one.

    The class follows from the kind, images, ports, probes and terminals, unless the label or annotation kaiwo.ai/class
    states another. It decides whether a workload may be selected as a victim, whether its replicas are packed or
    spread, how long its GPUs may be idle, what it counts in `kopt queue --by-score`, and whether it is expected to
    write checkpoints. KOPT_WORKLOAD_CLASSES replaces entries of the table, here as in the chart (workloadClasses).

    Examples:

        kopt classes

        kopt classes --class interactive -n research

        kopt classes --table -o json
    """
    in_force = check_classes()
    if table:
        show(table_answer(in_force), output)
        return
    pod_kinds, saved = asyncio.run(_running(kubeconfig, namespace))
    show(answer(pod_kinds, saved, time.time(), only), output)


def check_classes() -> "ClassTable":
    """The table in force. Raises Refused for one that cannot be used: it would be met in the middle of the work."""
    from kopt.cluster.workloads.workload_class import class_table

    try:
        return class_table()
    except ValueError as error:
        raise Refused(str(error)) from error


async def _running(kubeconfig: Path | None, namespace: str) -> "tuple[list[PodKind], dict[tuple[str, str], float]]":
    from kopt.controllers.overview.running_workloads import running

    async with open_cluster(kubeconfig) as kube:
        return [pod_kind async for pod_kind in running(kube, namespace)], await _saved_at(kube, namespace)


async def _saved_at(kube: "Kube", namespace: str) -> dict[tuple[str, str], float]:
    """When the last durable checkpoint of each pod was, by namespace and name."""
    from kopt.cluster.client.resources import PODS, key_of
    from kopt.cluster.objects.fields import text
    from kopt.core.times import seconds_or_none

    result = {}
    async for page in kube.pages(PODS, namespace):
        for pod in page.items:
            if (at_s := seconds_or_none(text(pod, "metadata", "annotations", _SAVED))) is not None:
                result[key_of(pod)] = at_s
    return result


def table_answer(in_force: "ClassTable") -> Answer:
    rows = [
        TraitsRow(
            str(workload_class),
            traits.preemptible,
            str(traits.placement),
            traits.idle_s,
            traits.queue_points,
            traits.checkpoint,
            ", ".join(traits.also),
            traits.means,
        )
        for workload_class, traits in in_force.traits.items()
    ]
    return Answer("classes", rows)


def answer(
    pod_kinds: "list[PodKind]",
    saved: Mapping[tuple[str, str], float],
    now_s: float,
    only: WorkloadClass | None = None,
) -> Answer:
    """Sums are over what is shown."""
    rows = [_row(pod_kind, saved, now_s) for pod_kind in pod_kinds]
    rows = sorted(
        (row for row in rows if only is None or row.workload_class == only),
        key=lambda row: (list(WorkloadClass).index(WorkloadClass(row.workload_class)), row.namespace, row.workload),
    )
    counts = [
        f"{sum(row.gpus for row in rows if row.workload_class == each):g} GPUs {each}"
        for each in WorkloadClass
        if any(row.workload_class == each for row in rows)
    ]
    owing = sum(row.checkpoint == "none seen" for row in rows)
    remarks = [f"{', '.join(counts)}."] if counts else []
    if owing:
        remarks.append(f"{owing} should write checkpoints, and none was seen: `kopt agent logtail` follows their logs.")
    return Answer("workloads", rows, remarks=remarks, empty="no GPU workload of this class" if only else "no workload")


def _row(pod_kind: "PodKind", saved: Mapping[tuple[str, str], float], now_s: float) -> ClassRow:
    workload, class_ = pod_kind.workload, pod_kind.workload.classified
    times = [saved[key] for name in pod_kind.pod_names if (key := (workload.namespace, name)) in saved]
    since_s = max(0.0, now_s - max(times)) if times else None
    checkpoint = ""
    if class_.traits.checkpoint and pod_kind.pod_names:
        checkpoint = "none seen" if since_s is None else f"{format_span(since_s)} ago"
    return ClassRow(
        workload.namespace,
        pod_kind.label,
        pod_kind.pods.gpus * pod_kind.pods.pods / WHOLE_GPU,
        str(class_.workload_class),
        class_.traits.preemptible,
        str(class_.traits.placement),
        checkpoint,
        class_.why,
        since_s,
        ",".join(reason.code for reason in class_.reasons),
    )
