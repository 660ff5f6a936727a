"""``kopt bandwidth pairs``: what pairs of nodes were measured to reach, from the endpoint or from logs."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kopt.cli.errors import Refused, usage_error
from kopt.cli.options import Output
from kopt.cli.output import Answer, Format, column, format_number, show
from kopt.core.hardware.pairwise import Health
from kopt.serving.base.environment import load_settings

if TYPE_CHECKING:
    from kopt.core.hardware.collectives import CollectiveLog, CollectiveRun
    from kopt.core.hardware.node_topology import NodeTopology
    from kopt.core.hardware.pairwise import MeasuredPair
    from kopt.serving.contract.bandwidth.pairwise_answers import PairNodeOut, PairOut, PairsResponse

_LOG = re.compile(r"(?P<a>[A-Za-z0-9][-._A-Za-z0-9]*),(?P<b>[A-Za-z0-9][-._A-Za-z0-9]*)=(?P<file>.+)")
_BATCH = 500
_NONE = (
    "no pair of nodes has been measured; apply a PairwiseBenchmark on the cluster, or post logs: "
    "kopt bandwidth pairs node-1,node-2=all_reduce.log --cluster NAME --post"
)


@dataclass(frozen=True)
class PairRow:
    nodes: str = column("nodes")
    collective: str = column("collective")
    gpus_per_node: int = column("GPUs")
    health: str = column("health")
    measured: float | None = column("GB/s")
    predicted: float | None = column("predicted")
    share: float | None = column("share", show=lambda share: f"{share:.0%}")
    alpha_us: float | None = column("alpha µs")
    beta_gbps: float | None = column("beta GB/s")
    measured_at: str = column("measured (UTC)")
    reason: str = column("reason", wide=True)


def pairs_command(
    files: Annotated[
        list[str] | None,
        typer.Argument(metavar="[A,B=LOG...]", help="Logs of nccl-tests or rccl-tests between the nodes A and B."),
    ] = None,
    cluster: Annotated[
        str, typer.Option("--cluster", metavar="NAME", help="The cluster of the pairs; default: the only one.")
    ] = "",
    post: Annotated[bool, typer.Option("--post", help="Give what the logs show to the endpoint.")] = False,
    topology: Annotated[
        Path | None,
        typer.Option("--topology", metavar="FILE", help="With logs: what every one of these nodes looks like."),
    ] = None,
    output: Output = Format.TABLE,
) -> None:
    """Pairs of nodes: what they were measured to reach, what is predicted of them, and which are slow.

    Without logs this lists what the endpoint stores, as pairwise benchmarks of clusters measured it. With logs, each
    of a run over the same number of GPUs of two nodes, it evaluates these; with --post the endpoint stores them, and
    calibrates answers for --cluster with them. Bandwidths are bus bandwidths at the largest size; alpha and beta
    are those of the line through all sizes.

    Examples:

        kopt bandwidth pairs --cluster east

        kopt bandwidth pairs gpu-1,gpu-2=a.log gpu-1,gpu-3=b.log --topology node.json

        kopt bandwidth pairs gpu-1,gpu-2=a.log --topology node.json --cluster east --post
    """
    if not files:
        if post or topology is not None:
            usage_error("--post and --topology need logs: A,B=LOG", "A,B=LOG")
        _list_stored(cluster, output)
        return
    if post and not cluster:
        usage_error("name the cluster of these pairs with --cluster", "--cluster")
    pairs, nodes = _evaluated([measured_pair for name in files for measured_pair in _read(name)])
    node = _node(topology)
    views = _predicted(pairs, node)
    remarks = [_of_node(pair_node) for pair_node in nodes if pair_node.health is not Health.HEALTHY]
    if post:
        remarks += _posted(cluster, pairs, node)
    document = _document(cluster, nodes, views)
    show(Answer("pairs", [_row(pair) for pair in views], title=cluster, remarks=remarks, document=document), output)


def _list_stored(cluster: str, output: Format) -> None:
    from kopt.cli.endpoint import endpoint
    from kopt.serving.client.transport import RequestRefused
    from kopt.serving.contract.common import AnswerError

    try:
        with endpoint(load_settings()) as client:
            cluster_pairs = client.pairs(cluster or None)
            if not cluster and len(cluster_pairs.clusters) > 1:
                usage_error(f"there are pairs of {', '.join(cluster_pairs.clusters)}; name one", "--cluster")
            if not cluster and cluster_pairs.clusters:
                cluster_pairs = client.pairs(cluster_pairs.clusters[0])
    except (RequestRefused, AnswerError) as error:
        raise Refused(str(error)) from error
    show(_answer(cluster_pairs), output)


def _answer(cluster_pairs: "PairsResponse") -> Answer:
    sick = [_of_node(node) for node in cluster_pairs.nodes if node.health is not Health.HEALTHY]
    document = _document(cluster_pairs.name, cluster_pairs.nodes, cluster_pairs.pairs)
    rows = [_row(pair) for pair in cluster_pairs.pairs]
    return Answer("pairs", rows, title=cluster_pairs.name, remarks=sick, empty=_NONE, document=document)


def _of_node(pair_node: "PairNodeOut") -> str:
    return f"{pair_node.name} is {pair_node.health.value.lower()}: {pair_node.reason}"


def _document(cluster: str, nodes: "Sequence[PairNodeOut]", pairs: "Sequence[PairOut]") -> dict[str, Any]:
    return {
        "schema": "kopt/v1",
        "cluster": cluster,
        "nodes": [
            {"name": node.name, "health": node.health.value, "reason": node.reason, "domains": list(node.domains)}
            for node in nodes
        ],
        "pairs": [
            pair.pair.to_dict()
            | {
                "measured_gbps": pair.measured_gbps,
                "predicted_gbps": pair.predicted_gbps,
                "low_gbps": pair.low_gbps,
                "high_gbps": pair.high_gbps,
            }
            for pair in pairs
        ],
    }


def _row(pair_view: "PairOut") -> PairRow:
    measured_pair, measured, predicted = pair_view.pair, pair_view.measured_gbps, pair_view.predicted_gbps
    at = datetime.fromtimestamp(measured_pair.measured_at, UTC).strftime("%Y-%m-%d %H:%M")
    share = measured / predicted if measured and predicted else None
    return PairRow(
        " – ".join(measured_pair.nodes),
        measured_pair.collective.value,
        measured_pair.gpus_per_node,
        measured_pair.health.value,
        measured,
        predicted,
        share,
        measured_pair.alpha_us,
        measured_pair.beta_gbps,
        at,
        measured_pair.reason,
    )


def _read(argument: str) -> "list[MeasuredPair]":
    """The pair of each run in a log. Raises Refused with the name of the file."""
    from kopt.cli.topology.input import parsed
    from kopt.core.hardware.collectives import CollectiveLog

    named = _LOG.fullmatch(argument)
    if named is None:
        usage_error(f"{argument!r} does not name a pair; write node-1,node-2=all_reduce.log", "A,B=LOG")
    if named["a"] == named["b"]:
        usage_error(f"{argument!r} names one node twice", "A,B=LOG")
    result, path = parsed([named["file"]]), Path(named["file"])
    if not isinstance(result, CollectiveLog):
        raise Refused(f"{path}: this is no log of nccl-tests or rccl-tests")
    text = path.read_text(encoding="utf-8", errors="replace")
    nodes = (min(named["a"], named["b"]), max(named["a"], named["b"]))
    return _pairs(result, nodes, path, text)


def _pairs(log: "CollectiveLog", nodes: tuple[str, str], path: Path, text: str) -> "list[MeasuredPair]":
    from kopt.controllers.pairwise.results import software_of

    return [_pair(run, nodes, path, software_of(text)) for run in log.runs]


def _pair(run: "CollectiveRun", nodes: tuple[str, str], path: Path, software: str) -> "MeasuredPair":
    from kopt.core.hardware.bandwidth import BandwidthError, collective
    from kopt.core.hardware.pairwise import MeasuredPair, MeasuredPoint
    from kopt.policies.pairwise.fit import fit

    if run.hosts != 2 or len(run.ranks) % 2:
        raise Refused(f"{path}: {len(run.ranks)} ranks on {run.hosts} hosts; a pair has as many on each of two")
    if sum(row.wrong or 0 for row in run.rows):
        raise Refused(f"{path}: some of the values that came out were wrong; this measures nothing")
    try:
        kind = collective(run.collective)
    except BandwidthError as error:
        raise Refused(f"{path}: {error}") from error
    times: dict[int, float] = {}
    for row in sorted(run.rows, key=lambda row: not row.in_place):
        times[row.bytes] = row.latency_us
    points = [MeasuredPoint(size, times[size]) for size in sorted(times)][-64:]
    line = fit([(float(point.bytes), point.latency_us) for point in points])
    if line is None:
        raise Refused(f"{path}: the times do not grow with the size, so no bandwidth follows from them")
    beta = line.gigabytes_per_s(kind.bus_factor(len(run.ranks)))
    return MeasuredPair(
        nodes,
        len(run.ranks) // 2,
        kind,
        path.stat().st_mtime,
        tuple(points),
        round(line.alpha_us, 3),
        round(beta, 3),
        software,
    )


def _evaluated(pairs: "list[MeasuredPair]") -> "tuple[list[MeasuredPair], list[PairNodeOut]]":
    """Slow ones named, where there are enough of them to compare."""
    from kopt.policies.pairwise.health import Result, evaluate
    from kopt.serving.contract.bandwidth.pairwise_answers import PairNodeOut

    results = [
        Result(pair.nodes, pair.collective.value, (pair.collective, pair.gpus_per_node, pair.software), pair.beta_gbps)
        for pair in pairs
    ]
    judgement = evaluate(results)
    evaluated = [
        replace(measured_pair, health=evaluation.health, reason=evaluation.reason)
        for measured_pair, evaluation in zip(pairs, judgement.pairs, strict=True)
    ]
    nodes = [PairNodeOut(name, item.health, item.reason, (), None) for name, item in sorted(judgement.nodes.items())]
    return evaluated, nodes


def _node(topology: Path | None) -> "NodeTopology | None":
    if topology is None:
        return None
    from kopt.cli.topology.input import parsed
    from kopt.core.hardware.node_topology import NodeTopology

    result = parsed([str(topology)])
    if not isinstance(result, NodeTopology):
        raise Refused(f"{topology}: this is no node; give the output of a tool that shows one")
    return result


def _predicted(pairs: "list[MeasuredPair]", node: "NodeTopology | None") -> "list[PairOut]":
    """Beside what the model predicts from the hardware alone, where that is known."""
    from kopt.serving.contract.bandwidth.pairwise_answers import PairOut

    if node is None:
        return [PairOut.of(pair) for pair in pairs]
    from kopt.core.hardware.bandwidth import BandwidthError
    from kopt.models.bandwidth.loading import load_bandwidth
    from kopt.sdk import bandwidth as ask

    model = load_bandwidth("champion", load_settings())
    gpus = sorted(gpu.index for gpu in node.gpus)
    result = []
    for pair in pairs:
        size = max(point.bytes for point in pair.points)
        try:
            estimate = ask.bandwidth(
                node, gpus[: pair.gpus_per_node], pair.collective, size, nodes=2, model=model, software=pair.software
            )
        except BandwidthError as error:
            raise Refused(f"{' and '.join(pair.nodes)}: {error}") from error
        result.append(
            PairOut.of(
                pair, estimate.bus_gigabytes_per_s, estimate.bus_low_gigabytes_per_s, estimate.bus_high_gigabytes_per_s
            )
        )
    return result


def _posted(cluster: str, pairs: "list[MeasuredPair]", node: "NodeTopology | None") -> list[str]:
    from kopt.cli.endpoint import endpoint
    from kopt.serving.client.transport import RequestRefused
    from kopt.serving.contract.common import AnswerError

    kept, unknown = 0, set[str]()
    try:
        with endpoint(load_settings()) as client:
            for start in range(0, len(pairs), _BATCH):
                batch = pairs[start : start + _BATCH]
                links = (
                    {name: node for measured_pair in batch for name in measured_pair.nodes} if node is not None else {}
                )
                result = client.tell_pairs(cluster, batch, links)
                kept, unknown = kept + result.kept, unknown | set(result.unknown_nodes)
    except (RequestRefused, AnswerError) as error:
        raise Refused(str(error)) from error
    remarks = [f"{format_number(kept)} of {len(pairs)} pair(s) kept by the endpoint for cluster {cluster}"]
    if unknown:
        remarks.append(
            f"not known there, so that their pairs calibrate nothing: {', '.join(sorted(unknown)[:20])}; "
            "say with --topology what they look like"
        )
    return remarks
