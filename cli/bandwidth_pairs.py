"""``kopt bandwidth pairs``: what pairs of nodes were measured to reach, from the endpoint or from logs."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kopt.cli.edge import Refused, usage_error
from kopt.cli.options import Output
from kopt.cli.output import Answer, Format, column, format_number, show
from kopt.core.pairs import Health
from kopt.serving.environment import load_settings

if TYPE_CHECKING:
    from kopt.core.collectives import CollectiveLog, CollectiveRun
    from kopt.core.pairs import MeasuredPair
    from kopt.core.topology import NodeTopology
    from kopt.serving.bandwidth_pairs_answers import ClusterPairs, PairNode, PairView

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
        str, typer.Option("--cluster", metavar="NAME", help="Whose pairs; where there is one cluster, its.")
    ] = "",
    post: Annotated[bool, typer.Option("--post", help="Give what the logs show to the endpoint.")] = False,
    topology: Annotated[
        Path | None,
        typer.Option("--topology", metavar="FILE", help="With logs: what every one of these nodes looks like."),
    ] = None,
    output: Output = Format.TABLE,
) -> None:  # fmt: skip
    """Pairs of nodes: what they were measured to reach, what is predicted of them, and which are slow.

    Without logs the endpoint is asked, which the pairwise benchmark on a cluster tells. With logs it is they that are
    read, each of a run over the same number of GPUs of two nodes; with --post the endpoint keeps them, and answers for
    --cluster are drawn towards them from then on. Bandwidths are bus bandwidths at the largest size; alpha and beta
    are those of the line through all sizes.

    Examples:

        kopt bandwidth pairs --cluster east

        kopt bandwidth pairs gpu-1,gpu-2=a.log gpu-1,gpu-3=b.log --topology node.json

        kopt bandwidth pairs gpu-1,gpu-2=a.log --topology node.json --cluster east --post
    """
    if not files:
        if post or topology is not None:
            usage_error("--post and --topology need logs: A,B=LOG", "A,B=LOG")
        _asked(cluster, output)
        return
    if post and not cluster:
        usage_error("say with --cluster whose pairs these are", "--cluster")
    pairs, nodes = _judged([one for name in files for one in _read(name)])
    node = _node(topology)
    views = _predicted(pairs, node)
    notes = [_of_node(one) for one in nodes if one.health is not Health.HEALTHY]
    if post:
        notes += _posted(cluster, pairs, node)
    document = _document(cluster, nodes, views)
    show(Answer("pairs", [_row(one) for one in views], title=cluster, notes=notes, document=document), output)


def _asked(cluster: str, output: Format) -> None:
    from kopt.cli.endpoint import endpoint
    from kopt.serving.answers import AnswerError
    from kopt.serving.client import RequestRefused

    try:
        with endpoint(load_settings()) as client:
            found = client.pairs(cluster or None)
            if not cluster and len(found.clusters) > 1:
                usage_error(f"there are pairs of {', '.join(found.clusters)}; say whose you mean", "--cluster")
            if not cluster and found.clusters:
                found = client.pairs(found.clusters[0])
    except (RequestRefused, AnswerError) as error:
        raise Refused(str(error)) from error
    show(_answer(found), output)


def _answer(found: "ClusterPairs") -> Answer:
    sick = [_of_node(one) for one in found.nodes if one.health is not Health.HEALTHY]
    document = _document(found.cluster, found.nodes, found.pairs)
    rows = [_row(one) for one in found.pairs]
    return Answer("pairs", rows, title=found.cluster, notes=sick, empty=_NONE, document=document)


def _of_node(one: "PairNode") -> str:
    return f"{one.name} is {one.health.value.lower()}: {one.reason}"


def _document(cluster: str, nodes: "Sequence[PairNode]", pairs: "Sequence[PairView]") -> dict[str, Any]:
    return {
        "schema": "kopt/v1", "cluster": cluster,
        "nodes": [{"name": one.name, "health": one.health.value, "reason": one.reason, "domains": list(one.domains)}
                  for one in nodes],
        "pairs": [one.pair.to_dict() | {"measured_gbps": one.measured_gbps, "predicted_gbps": one.predicted_gbps,
                                        "low_gbps": one.low_gbps, "high_gbps": one.high_gbps} for one in pairs],
    }  # fmt: skip


def _row(view: "PairView") -> PairRow:
    one, measured, predicted = view.pair, view.measured_gbps, view.predicted_gbps
    at = datetime.fromtimestamp(one.measured_at, UTC).strftime("%Y-%m-%d %H:%M")
    share = measured / predicted if measured and predicted else None
    return PairRow(" – ".join(one.nodes), one.collective.value, one.gpus_per_node, one.health.value, measured,
                   predicted, share, one.alpha_us, one.beta_gbps, at, one.reason)  # fmt: skip


def _read(argument: str) -> "list[MeasuredPair]":
    """The pair of each run in a log. Raises Refused with the name of the file."""
    from kopt.cli.topology import parsed
    from kopt.core.collectives import CollectiveLog

    named = _LOG.fullmatch(argument)
    if named is None:
        usage_error(f"{argument!r} does not name a pair; write node-1,node-2=all_reduce.log", "A,B=LOG")
    if named["a"] == named["b"]:
        usage_error(f"{argument!r} names one node twice", "A,B=LOG")
    found, path = parsed([named["file"]]), Path(named["file"])
    if not isinstance(found, CollectiveLog):
        raise Refused(f"{path}: this is no log of nccl-tests or rccl-tests")
    text = path.read_text(encoding="utf-8", errors="replace")
    nodes = (min(named["a"], named["b"]), max(named["a"], named["b"]))
    return _pairs(found, nodes, path, text)


def _pairs(log: "CollectiveLog", nodes: tuple[str, str], path: Path, text: str) -> "list[MeasuredPair]":
    from kopt.controllers.pairs.results import software_of

    return [_pair(run, nodes, path, software_of(text)) for run in log.runs]


def _pair(run: "CollectiveRun", nodes: tuple[str, str], path: Path, software: str) -> "MeasuredPair":
    from kopt.core.bandwidth import BandwidthError, collective
    from kopt.core.pairs import MeasuredPair, MeasuredPoint
    from kopt.policies.pairs.fit import fit

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
    line = fit([(float(one.bytes), one.latency_us) for one in points])
    if line is None:
        raise Refused(f"{path}: the times do not grow with the size, so they tell no bandwidth")
    beta = line.gigabytes_per_s(kind.bus_factor(len(run.ranks)))
    return MeasuredPair(
        nodes, len(run.ranks) // 2, kind, path.stat().st_mtime, tuple(points), round(line.alpha_us, 3), round(beta, 3),
        software,
    )  # fmt: skip


def _judged(pairs: "list[MeasuredPair]") -> "tuple[list[MeasuredPair], list[PairNode]]":
    """Slow ones named, where there are enough of them to compare."""
    from kopt.policies.pairs.health import Result, judge
    from kopt.serving.bandwidth_pairs_answers import PairNode

    results = [
        Result(one.nodes, one.collective.value, (one.collective, one.gpus_per_node, one.software), one.beta_gbps)
        for one in pairs
    ]
    found = judge(results)
    told = [replace(one, health=verdict.health, reason=verdict.reason)
            for one, verdict in zip(pairs, found.pairs, strict=True)]  # fmt: skip
    nodes = [PairNode(name, one.health, one.reason) for name, one in sorted(found.nodes.items())]
    return told, nodes


def _node(topology: Path | None) -> "NodeTopology | None":
    if topology is None:
        return None
    from kopt.cli.topology import parsed
    from kopt.core.topology import NodeTopology

    found = parsed([str(topology)])
    if not isinstance(found, NodeTopology):
        raise Refused(f"{topology}: this is no node; give the output of a tool that shows one")
    return found


def _predicted(pairs: "list[MeasuredPair]", node: "NodeTopology | None") -> "list[PairView]":
    """Beside what the hardware alone lets expect, where it is known."""
    from kopt.serving.bandwidth_pairs_answers import PairView

    if node is None:
        return [PairView(one) for one in pairs]
    from kopt.core.bandwidth import BandwidthError
    from kopt.models.bandwidth import ask

    model = ask.load("champion", load_settings())
    gpus = sorted(one.index for one in node.gpus)
    found = []
    for one in pairs:
        size = max(point.bytes for point in one.points)
        try:
            said = ask.bandwidth(node, gpus[: one.gpus_per_node], one.collective, size, nodes=2, model=model,
                                 software=one.software)  # fmt: skip
        except BandwidthError as error:
            raise Refused(f"{' and '.join(one.nodes)}: {error}") from error
        found.append(
            PairView(one, said.bus_gigabytes_per_s, said.bus_low_gigabytes_per_s, said.bus_high_gigabytes_per_s)
        )
    return found


def _posted(cluster: str, pairs: "list[MeasuredPair]", node: "NodeTopology | None") -> list[str]:
    from kopt.cli.endpoint import endpoint
    from kopt.serving.answers import AnswerError
    from kopt.serving.client import RequestRefused

    kept, unknown = 0, set[str]()
    try:
        with endpoint(load_settings()) as client:
            for start in range(0, len(pairs), _BATCH):
                batch = pairs[start : start + _BATCH]
                known = {name: node for one in batch for name in one.nodes} if node is not None else {}
                found = client.tell_pairs(cluster, batch, known)
                kept, unknown = kept + found.kept, unknown | set(found.unknown_nodes)
    except (RequestRefused, AnswerError) as error:
        raise Refused(str(error)) from error
    notes = [f"{format_number(kept)} of {len(pairs)} pair(s) kept by the endpoint for cluster {cluster}"]
    if unknown:
        notes.append(f"not known there, so that their pairs calibrate nothing: {', '.join(sorted(unknown)[:20])}; "
                     "say with --topology what they look like")  # fmt: skip
    return notes
