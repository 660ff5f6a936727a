"""``kopt idle``: GPUs that are held and not used, by what Prometheus measured."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kopt.cli.errors import usage_error
from kopt.cli.open_cluster import open_cluster
from kopt.cli.options import Kubeconfig, Output, PrometheusToken, seconds
from kopt.cli.output import Answer, Format, column, show
from kopt.core.units import WHOLE_GPU, format_span
from kopt.policies.idle import Idleness, idleness, should_give_up, unused_gpu_hours

if TYPE_CHECKING:
    from kopt.cli.sizing.measured import Measurements
    from kopt.cluster.client.api import Kube
    from kopt.cluster.objects.kaiwo_workloads import GpuWorkload
    from kopt.controllers.overview.running_workloads import PodKind

_SHORTEST_S = 600


def _percent(share: float) -> str:
    return f"{share:.0%}"


@dataclass(frozen=True)
class IdleRow:
    """Pods of a workload. Activity is the share of time in which kernels ran: its mean, and the busiest step's."""

    namespace: str = column("namespace")
    workload: str = column("workload")
    gpus: float = column("GPUs", show=lambda gpus: f"{gpus:g}")
    state: str = column("state")
    activity: float | None = column("active", show=_percent)
    activity_high: float | None = column("at most", show=_percent, drop=2)
    measured_s: float = column("measured", show=lambda span_s: format_span(span_s) if span_s else "", drop=1)
    unused_gpu_hours: float | None = column("unused", show=lambda hours: f"{hours:.1f} GPU-h")
    unused_cost: float | None = column("cost", show=lambda cost: f"{cost:,.2f}", drop=3)
    shared: bool = column("shared", wide=True)
    workload_class: str = column("class", drop=4)
    gives_up: bool = column("should end", drop=4)
    ended_by: str = column("ended by", drop=4)


def idle(
    prometheus: Annotated[
        str, typer.Option("--prometheus", metavar="URL", help="Where dcgm-exporter or AMD's exporter is scraped.")
    ],
    since: Annotated[str, typer.Option("--since", metavar="SPAN", help="How far back.")] = "24h",
    below: Annotated[
        float, typer.Option("--below", metavar="PERCENT", help="Active for less of the time than this is idle.")
    ] = 5.0,
    everything: Annotated[bool, typer.Option("--all", help="Also what is used, and what is not measured.")] = False,
    price: Annotated[
        float | None, typer.Option("--price", min=0, metavar="AMOUNT", help="Of a GPU-hour: shows what it costs.")
    ] = None,
    namespace: Annotated[str, typer.Option("-n", "--namespace", help="Only this namespace; default: all.")] = "",
    token_file: PrometheusToken = None,
    kubeconfig: Kubeconfig = None,
    output: Output = Format.TABLE,
) -> None:
    """List workloads that hold GPUs and do not use them, the most wasteful first.

    A workload is idle when even its busiest step of the window stayed below the threshold, and low when its mean did.
    What Prometheus does not measure is counted, never called idle. GPUs that nobody holds are in `kopt gpus --free`.
    Of a GPU that pods share, activity is that of all of them. "Should end": it was idle for as long as its class may be
    (`kopt classes --table`); inference services wait for requests, so they never should.

    Examples:

        kopt idle --prometheus http://prometheus:9090

        kopt idle --prometheus http://prometheus:9090 --since 7d --below 10 --price 2.49 -n research
    """
    from kopt.cli.sizing import measured

    if not 0 < below <= 100:
        usage_error(f"{below:g} is no per cent of time above 0", "--below")
    span_s = seconds(since, "--since")
    if span_s < _SHORTEST_S:
        usage_error(f"a window of {format_span(span_s)} is shorter than {format_span(_SHORTEST_S)}", "--since")
    pod_kinds, kaiwos = asyncio.run(_running(kubeconfig, namespace))
    measurements = measured.read(measured.Question(prometheus, span_s, token_file), namespace)
    show(answer(pod_kinds, measurements, below / 100, price, everything=everything, kaiwos=kaiwos), output)


async def _running(kubeconfig: Path | None, namespace: str) -> "tuple[list[PodKind], dict[str, GpuWorkload]]":
    from kopt.controllers.overview.running_workloads import running

    async with open_cluster(kubeconfig) as kube:
        return [pod_kind async for pod_kind in running(kube, namespace)], await read_kaiwos(kube, namespace)


async def read_kaiwos(kube: "Kube", namespace: str) -> "dict[str, GpuWorkload]":
    """What Kaiwo measures and ends by itself, by the workload's uid; nothing where it is not installed, or may not be
    read."""
    from kopt.cluster.client.api import Forbidden, NotFound
    from kopt.cluster.objects.kaiwo_workloads import GPU_WORKLOADS, read_gpu_workload

    try:
        tracked = [
            read_gpu_workload(item) async for page in kube.pages(GPU_WORKLOADS, namespace) for item in page.items
        ]
    except (NotFound, Forbidden):
        return {}
    return {each.workload.uid: each for each in tracked if each is not None}


def answer(
    pod_kinds: "list[PodKind]",
    measurements: "Measurements",
    threshold: float,
    price: float | None,
    *,
    everything: bool,
    kaiwos: "Mapping[str, GpuWorkload] | None" = None,
) -> Answer:
    """Sums are over all workloads, whatever is shown."""
    rows = sorted(
        (
            _row(pod_kind, measurements, threshold, price, (kaiwos or {}).get(uid_of(pod_kind)))
            for pod_kind in pod_kinds
        ),
        key=lambda row: (-(row.unused_gpu_hours or 0.0), row.namespace, row.workload),
    )
    wasteful = [row for row in rows if row.state in (Idleness.IDLE, Idleness.LOW)]
    unmeasured = [row for row in rows if row.state == Idleness.UNMEASURED]
    hours = sum(row.unused_gpu_hours or 0.0 for row in wasteful)
    remarks = []
    if wasteful:
        cost = "" if price is None else f", {hours * price:,.2f} at {price:g} each"
        gpus = sum(row.gpus for row in wasteful)
        remarks.append(f"{len(wasteful)} of {len(rows)} workloads, {gpus:g} GPUs: {hours:.1f} GPU-hours unused{cost}.")
    if theirs := sum(bool(row.ended_by) for row in wasteful):
        remarks.append(f"{theirs} of them Kaiwo ends by itself (its GpuWorkloads say when): nobody else has to.")
    if unmeasured:
        names = ", ".join(f"{row.namespace}/{row.workload}" for row in unmeasured[:3])
        more = f" and {len(unmeasured) - 3} more" if len(unmeasured) > 3 else ""
        remarks.append(f"Not measured, so nothing is said about them: {names}{more}.")
    if measurements.hint and rows:
        remarks.append(measurements.hint)
    empty = "no workload holds GPUs" if not rows else "no workload that is measured holds GPUs without using them"
    return Answer("workloads", rows if everything else wasteful, remarks=remarks, empty=empty)


def uid_of(pod_kind: "PodKind") -> str:
    """Of the workload."""
    return str(pod_kind.workload.document["metadata"].get("uid", ""))


def _row(
    pod_kind: "PodKind",
    measurements: "Measurements",
    threshold: float,
    price: float | None,
    kaiwo: "GpuWorkload | None" = None,
) -> IdleRow:
    from kopt.cluster.objects.custom.reservation import held_for

    use = measurements.use_of(pod_kind)
    milli = pod_kind.pods.gpus * pod_kind.pods.pods
    unused = unused_gpu_hours(milli, use)
    state, class_ = idleness(use, threshold), pod_kind.workload.classified
    reserved = held_for(pod_kind.workload.document)
    return IdleRow(
        pod_kind.workload.namespace,
        f"kaiworeservation/{reserved}" if reserved else pod_kind.label,
        milli / WHOLE_GPU,
        state.value,
        None if use is None else use.activity,
        None if use is None else use.activity_high,
        0.0 if use is None else use.measured_s,
        unused,
        None if unused is None or price is None else unused * price,
        use is not None and use.shared,
        str(class_.workload_class),
        not reserved and should_give_up(state, use, class_.traits),
        "" if kaiwo is None else kaiwo.ending,
    )
