"""``kopt replicas``: into how many replicas of how many GPUs a workload is best divided."""

import asyncio
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kopt.cli.errors import Refused, usage_error
from kopt.cli.options import Kubeconfig, Output, gpus, seconds
from kopt.cli.output import Answer, Format, column, show
from kopt.cli.progress import step
from kopt.core.reason import Reason
from kopt.core.scheduling.replicas import MAX_GPUS, NodeGpus, ReplicaAdvice, ShapeEstimate
from kopt.core.units import format_span
from kopt.serving.base.environment import load_settings

if TYPE_CHECKING:
    from kopt.core.workload.run_time import JobKind, RunTimeQuantiles
    from kopt.policies.diagnosis import QueueModel
    from kopt.policies.replicas import ReplicaQuestion

_ASSUMED_RUN_S = 4 * 3600.0

Total = Annotated[int, typer.Option("--gpus", min=1, max=MAX_GPUS, help="GPUs of the whole workload.")]
Free = Annotated[
    str,
    typer.Option("--free", metavar="N[/M],...", help="Free GPUs of each node, in place of a cluster: 8,4/8,2/8 of 8."),
]
Nodes = Annotated[
    Path | None, typer.Option("--nodes", metavar="TABLE", help="The same as a CSV file: name, gpus and free.")
]
RunTime = Annotated[
    str, typer.Option("--run-time", metavar="SPAN", help="How long it runs in its fastest shape: 6h, 3d.")
]
Queue = Annotated[
    str, typer.Option("--queue", metavar="NAME", help="Its queue; the endpoint then says how long such jobs run.")
]
Type = Annotated[str, typer.Option("--name", metavar="TYPE", help="With --queue: the type of the job.")]
User = Annotated[str, typer.Option("--user", metavar="NAME", help="With --queue: whose job it is.")]
Model = Annotated[
    str, typer.Option("--model", metavar="MODEL", help="The language model that is trained; needs the next three.")
]
GpuModel = Annotated[str, typer.Option("--gpu", metavar="MODEL", help="The GPU: H100.", autocompletion=gpus)]
Tokens = Annotated[int, typer.Option("--sequence", metavar="TOKENS", min=0, help="Tokens of a sequence.")]
Batch = Annotated[int, typer.Option("--batch", metavar="N", min=0, help="The global batch, in sequences.")]
Nics = Annotated[str, typer.Option("--nics", metavar="TEXT", help="Network cards of a node: '8x NDR400 IB'.")]
ResourceName = Annotated[
    str, typer.Option("--resource", metavar="NAME", help="The cluster's GPUs that are meant: amd.com/gpu.")
]


@dataclass(frozen=True)
class ShapeRow:
    """One shape; ``selected`` is the first. Seconds and GPUs, None where they are not known."""

    selected: bool = column("", show=lambda selected: "→" if selected else " ")
    replicas: int = column("replicas")
    gpus_per_replica: int = column("GPUs each")
    fits_now: bool = column("fits now")
    wait_seconds: float | None = column("starts in", show=lambda wait: "now" if wait < 1 else format_span(wait))
    wait_high_seconds: float | None = column("90 %", show=lambda wait: "now" if wait < 1 else format_span(wait), drop=1)
    slowdown: float | None = column("step", show=lambda ratio: f"{ratio:.2f}×", drop=3)
    step_seconds: float | None = column("step (s)", wide=True)
    stranded_gpus: float | None = column("strands", show=lambda stranded: f"{stranded:+.2f} GPUs", drop=2)
    score_seconds: float | None = column("score", wide=True)
    code: str = column("code", wide=True)
    why: str = column("why")


@dataclass(frozen=True)
class _Room:
    """Where the workload can go, and what is known of it."""

    nodes: tuple[NodeGpus, ...]
    run_seconds: float | None = None
    model: "QueueModel | None" = None
    run_times: "Mapping[str, RunTimeQuantiles]" = field(default_factory=dict)
    usual: Mapping[int, float] = field(default_factory=dict)
    reasons: tuple[Reason, ...] = ()

    def question(self, gpus: int, run_s: float | None, steps: "Mapping[int, float] | None") -> "ReplicaQuestion":
        from kopt.policies.diagnosis import QueueModel
        from kopt.policies.replicas import ReplicaQuestion
        from kopt.policies.replicas.stranding import USUAL

        model, usual = self.model or QueueModel(), self.usual or USUAL
        return ReplicaQuestion(gpus, self.nodes, run_s or _ASSUMED_RUN_S, steps, model, self.run_times, usual)


def replicas(
    gpus: Total,
    free: Free = "",
    nodes: Nodes = None,
    run_time: RunTime = "",
    queue: Queue = "",
    name: Type = "",
    user: User = "",
    model: Model = "",
    gpu: GpuModel = "",
    sequence: Tokens = 0,
    batch: Batch = 0,
    nics: Nics = "",
    resource: ResourceName = "",
    kubeconfig: Kubeconfig = None,
    output: Output = Format.TABLE,
) -> None:
    """Into how many replicas of how many GPUs a workload is best divided on the nodes as they are now.

    Every shape that divides the GPUs evenly is compared: when it starts (free GPUs of nodes, and when what runs on them
    ends, by the endpoint's run times), how fast it computes, and how many free GPUs it leaves that usual pods cannot
    use. Each rejected shape comes with its reason. Read from the cluster, or from --free or --nodes without one.
    With --model the time of a step is that of `kopt parallelism`; else a measured law for data-parallel training.
    Status 1 where no shape could ever run.

    Examples:

        kopt replicas --gpus 24

        kopt replicas --gpus 24 --free 8,8,4/8,4/8,2/8

        kopt replicas --gpus 16 --nodes nodes.csv --run-time 12h

        kopt replicas --gpus 32 --queue research --name finetune --resource nvidia.com/gpu

        kopt replicas --gpus 16 --free 8,8,8 --model Llama-3-8B --gpu h100 --sequence 8192 --batch 128 -o json
    """
    from kopt.policies.replicas import replica_advice

    run_s = float(seconds(run_time, "--run-time")) if run_time else None
    _check_model(model, gpu, sequence, batch)
    if free and nodes is not None:
        usage_error("nodes are given by --free or by --nodes, not by both", "--free")
    own = _kind(queue, gpus, name, user)
    if free:
        room = _Room(_free_nodes(free))
    else:
        room = _Room(_table(nodes)) if nodes is not None else _read(kubeconfig, resource, own)
    steps, more = (None, ()) if not model else _step_seconds(gpus, room.nodes, model, gpu, sequence, batch, nics)
    assumed = run_s or room.run_seconds
    advice = replica_advice(room.question(gpus, assumed, steps))
    reasons = (*advice.reasons, *room.reasons, *more, *(() if assumed else (_assumed(),)))
    show(_answer(advice, room.nodes, reasons), output)
    if advice.selected is None:
        raise typer.Exit(1)


def _answer(advice: ReplicaAdvice, nodes: tuple[NodeGpus, ...], reasons: tuple[Reason, ...]) -> Answer:
    selected = () if advice.selected is None else (advice.selected,)
    rows = [_row(each, each in selected) for each in (*selected, *advice.rejected)]
    header = {
        "nodes": f"{len(nodes)} with {sum(node.gpus for node in nodes)} GPUs, {sum(node.free for node in nodes)} free",
        "runs for": f"{format_span(advice.run_seconds)} in the fastest shape",
        "by smallest node": f"ceil(total / smallest node) would be {advice.by_smallest_node}",
    }
    document = advice.to_dict() | {"reasons": [reason.to_dict() for reason in reasons]}
    remarks = [reason.message for reason in reasons]
    return Answer("shapes", rows, header, remarks=remarks, document=document)


def _row(estimate: ShapeEstimate, selected: bool) -> ShapeRow:
    return ShapeRow(
        selected,
        estimate.shape.replicas,
        estimate.shape.gpus,
        estimate.fits_now,
        estimate.wait_seconds,
        estimate.wait_high_seconds,
        estimate.slowdown,
        estimate.step_seconds,
        estimate.stranded_gpus,
        estimate.score_seconds,
        estimate.reason.code,
        estimate.reason.message,
    )


def _assumed() -> Reason:
    text = f"How long it runs is not known; {format_span(_ASSUMED_RUN_S)} are assumed (--run-time, or --queue)."
    return Reason("RUN_TIME_ASSUMED", text, {"seconds": _ASSUMED_RUN_S})


def _free_nodes(text: str) -> tuple[NodeGpus, ...]:
    """``8,4/8,2/8``: free GPUs, of as many as the node has. Wrong usage ends the process with status 2."""
    result = []
    for number, part in enumerate(text.split(","), start=1):
        amounts = [each.strip() for each in part.split("/")]
        if not 1 <= len(amounts) <= 2 or not all(
            each.isascii() and each.isdigit() and len(each) < 7 for each in amounts
        ):
            usage_error(f"{part[:40]!r} is no node; write its free GPUs, as in 8,8,4, or 4/8 for 4 of 8", "--free")
        free = int(amounts[0])
        try:
            result.append(NodeGpus(f"node-{number}", int(amounts[-1]), free))
        except ValueError:
            usage_error(f"{part[:40]!r}: no more GPUs can be free than there are; write 4/8 for 4 of 8", "--free")
    if not any(node.gpus for node in result):
        usage_error("none of these nodes has GPUs", "--free")
    return tuple(result)


def _table(path: Path) -> tuple[NodeGpus, ...]:
    from kopt.data.jobs.nodes import read_node_gpus
    from kopt.data.jobs.openb import TraceError

    try:
        return read_node_gpus(path)
    except TraceError as error:
        raise Refused(str(error)) from error


def _share_of(nics: str, gpus: int, of_node: int) -> str:
    """The network cards that a replica on a part of a node can count on: ``2x NDR400 IB`` for 2 GPUs of 8 with 8x."""
    cards = re.fullmatch(r"\s*(\d{1,3})\s*x\s*(.+)", nics)
    return f"{max(1, int(cards[1]) * gpus // of_node)}x {cards[2]}" if cards else nics


def _kind(queue: str, gpus: int, name: str, user: str) -> "JobKind | None":
    if not queue:
        if name or user:
            usage_error("the endpoint knows jobs by their queue; add --queue", "--name" if name else "--user")
        return None

    return JobKind(queue, gpus, name, user)


def _read(kubeconfig: Path | None, resource: str, own: "JobKind | None") -> _Room:
    from kopt.cluster.client.api import ApiError, connect
    from kopt.controllers.overview.diagnosis.endpoint import EndpointPredictions
    from kopt.controllers.overview.replicas import OWN, ClusterRoom, NoGpusError, read_room

    settings = load_settings()
    predictions = EndpointPredictions(settings.endpoint, settings.cluster)

    async def reading() -> ClusterRoom:
        async with connect(kubeconfig) as kube:
            return await read_room(kube, resource, time.time(), predictions, own)

    try:
        room = asyncio.run(reading())
    except (ApiError, NoGpusError) as error:
        raise Refused(f"{error}; without a cluster give the nodes' free GPUs: --free 8,4/8") from error
    if not room.nodes:
        raise Refused(f"no node with {room.resource} takes pods now: all are cordoned or not ready")
    run = room.run_times.get(OWN)
    median = None if run is None else dict(zip(run.levels, run.seconds, strict=True)).get(0.5)
    reasons = [Reason("ROOM_READ", f"Read for {room.resource}. Quota is left out; `kopt why` knows it.")]
    if room.unread:
        text = f"You may not read {', '.join(room.unread)}: more may run and wait than is counted."
        reasons.append(Reason("ROOM_PARTLY_READ", text))
    if room.no_run_times is not None:
        reasons.append(room.no_run_times)
    return _Room(room.nodes, median, room.model, room.run_times, room.usual, tuple(reasons))


def _check_model(model: str, gpu: str, sequence: int, batch: int) -> None:
    if model and not (gpu and sequence and batch):
        usage_error("with --model, give --gpu, --sequence and --batch as well", "--model")
    if not model and (gpu or sequence or batch):
        usage_error("--gpu, --sequence and --batch say something about --model alone", "--gpu")


def _step_seconds(
    total: int, nodes: tuple[NodeGpus, ...], model: str, gpu: str, sequence: int, batch: int, nics: str
) -> tuple[dict[int, float], tuple[Reason, ...]]:
    """Of the best split by GPUs of a replica; those on which nothing fits are left out."""
    from kopt.core.workload.training_plan import PlanError
    from kopt.policies.replicas import shapes_of
    from kopt.sdk.parallelism import parallelism

    most = max(node.gpus for node in nodes)
    result: dict[int, float] = {}
    refusals: list[str] = []
    with step("comparing splits"):
        for each in (shape.gpus for shape in shapes_of(total) if shape.gpus <= most):
            try:
                advice = parallelism(
                    model,
                    gpu=gpu,
                    gpus=total,
                    sequence=sequence,
                    global_batch=batch,
                    gpus_per_node=each,
                    nics=_share_of(nics, each, most),
                    count=1,
                    settings=load_settings(),
                )
            except PlanError as error:
                refusals.append(str(error))
                continue
            if advice.splits:
                result[each] = advice.splits[0].step_seconds
    if not result:
        raise Refused(refusals[0] if refusals else f"{model} fits on no shape of {total} GPUs; give it more")
    text = f"Steps are those of the best split of {model} that `kopt parallelism` knows, by GPUs of a node."
    return result, (Reason("STEPS_BY_SPLIT", text),)
