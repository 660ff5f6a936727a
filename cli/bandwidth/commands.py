"""``kopt bandwidth``: what a set of GPUs reaches together, without a server."""

import csv
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kopt.cli.bandwidth.pairs import pairs_command
from kopt.cli.collective_options import (
    Gpu,
    Kind,
    Model,
    Probes,
    Size,
    Traffic,
    bytes_of,
    collective_of,
    indexes,
    measured_of,
    traffic_of,
)
from kopt.cli.errors import Refused, usage_error
from kopt.cli.options import Kubeconfig, Output
from kopt.cli.output import Answer, Format, column, format_number, show
from kopt.cli.progress import print_status
from kopt.core.hardware.bandwidth import (
    BandwidthEstimate,
    BandwidthKind,
)
from kopt.core.hardware.node_topology import NodeTopology
from kopt.core.units import format_bytes
from kopt.serving.base.environment import load_settings

if TYPE_CHECKING:
    from kopt.cli.bandwidth.place import SetRequest

app = typer.Typer(no_args_is_help=True, help="Latency and bandwidth of collectives on a set of GPUs.")

Files = Annotated[
    list[str],
    typer.Argument(metavar="FILE...", help="A tool's output, or what `topology parse` made; - is stdin."),
]
Table = Annotated[Path, typer.Argument(metavar="IN.csv", help="Hardware, collective and size in each row; also .gz.")]
Gpus = Annotated[str, typer.Option("--gpus", metavar="LIST", help="Indexes in the topology: 0,1,2,3 or 0-7.")]
Nodes = Annotated[int, typer.Option("--nodes", min=1, max=100_000, help="So many nodes like this one.")]
Nics = Annotated[str, typer.Option("--nics", metavar="TEXT", help="Network cards of a node: '8x NDR400 IB'.")]
Software = Annotated[str, typer.Option("--software", metavar="TEXT", help="'nccl 2.27', 'aws-ofi-nccl', 'TCP'.")]
_KINDS = {"algorithm": "message by time", "bus": "as nccl-tests prints it", "link": "specification per GPU, one way"}


@app.callback()
def bandwidth() -> None:
    """Latency and bandwidth of collectives on a set of GPUs."""


@dataclass(frozen=True)
class KindRow:
    kind: str = column("bandwidth")
    gigabytes_per_s: float = column("GB/s")
    low: float | None = column("low")
    high: float | None = column("high")
    meaning: str = column("which is")


@app.command()
def estimate(
    files: Files,
    gpus: Gpus = "",
    kind: Kind = "all_reduce",
    size: Size = "1GiB",
    nodes: Nodes = 1,
    gpu: Gpu = "",
    nics: Nics = "",
    software: Software = "",
    probe: Probes = None,
    traffic: Traffic = None,
    model: Model = "champion",
    output: Output = Format.TABLE,
) -> None:
    """What a set of GPUs reaches together in one collective: time, algorithm and bus bandwidth with 90 % intervals.

    Without --gpus all of the node's GPUs. Link speeds come from the tools, else from the GPU model; where neither is
    known the answer says "unknown topology" and its interval is wide.

    Examples:

        nvidia-smi topo -m | kopt bandwidth estimate - --gpus 0,1,2,3 --gpu H100

        kopt bandwidth estimate topo.json --gpus 0-7 --collective all_to_all --bytes 256MiB

        kopt bandwidth estimate topo.txt --nodes 16 --nics '8x NDR400 IB' -o json

        kopt bandwidth estimate topo.txt --nodes 16 --nics 25GbE --probe all_reduce/2/1GiB=730000

        kopt bandwidth estimate topo.json --nodes 2 --traffic mlx5_0=20 --traffic mlx5_3=35/2
    """
    from kopt.models.bandwidth.loading import load_bandwidth
    from kopt.sdk import bandwidth as ask

    operation, size_bytes = collective_of(kind), bytes_of(size)
    node = _node(files)
    selection = indexes(gpus) if gpus else tuple(sorted(topology_gpu.index for topology_gpu in node.gpus))
    bandwidth_estimate = ask.bandwidth(
        node,
        selection,
        operation,
        size_bytes,
        nodes=nodes,
        gpu=gpu,
        nics=nics,
        software=software,
        probes=[measured_of(text) for text in probe or ()],
        traffic=[traffic_of(text) for text in traffic or ()],
        model=load_bandwidth(model, load_settings()),
    )
    show(_answer(bandwidth_estimate), output)


@app.command()
def predict(
    table: Annotated[
        Path, typer.Argument(metavar="IN.csv", help="Hardware, collective and size in each row; also .gz.")
    ],
    out: Annotated[Path, typer.Option("--out", metavar="OUT.csv", help="Where the answers go.")],
    model: Model = "champion",
) -> None:
    """Answers for a table: a row each, in the same order.

    Columns in: gpu, n_nodes, gpus_per_node (those used), collective, message_bytes; better with vendor, intra_link,
    nic_config, software, condition and which_gpus. Out: row (from 0), latency_us, algbw_GBps, busbw_GBps, and low and
    high: 90 % intervals of the latency up to 64 KiB, of the bus bandwidth above.

    Examples:

        kopt bandwidth predict questions.csv --out answers.csv
    """
    from kopt.models.bandwidth.loading import load_bandwidth
    from kopt.models.bandwidth.rows import read_queries

    rows = read_queries(table)
    if out.resolve() == table.resolve():
        usage_error("--out would overwrite the table itself", "--out")
    predictor = load_bandwidth(model, load_settings())
    estimates = [predictor.estimate_set(row.gpus(), row.collective, row.bytes) for row in rows]
    _write(out, estimates)
    unknown = sum(bandwidth_estimate.unknown for bandwidth_estimate in estimates)
    remark = f", {unknown} of them of unknown topology" if unknown else ""
    print_status(f"{len(estimates)} answers in {out}{remark}")


@app.command("place")
def choose_set(
    count: Annotated[int, typer.Option("--count", min=1, help="How many GPUs the job needs.")],
    files: Annotated[
        list[str] | None, typer.Argument(metavar="[FILE...]", help="Tools' outputs of one node, or a node in each.")
    ] = None,
    free: Annotated[str, typer.Option("--free", metavar="LIST", help="Those that are free; without it, all.")] = "",
    kind: Kind = "all_reduce",
    size: Size = "1GiB",
    gpu: Gpu = "",
    minimum: Annotated[float, typer.Option("--minimum", min=0.0, metavar="GB/s", help="Refuse sets below it.")] = 0.0,
    of: Annotated[BandwidthKind, typer.Option("--of", help="The bandwidth that --minimum means.")] = BandwidthKind.BUS,
    cluster: Annotated[bool, typer.Option("--cluster", help="On the cluster's nodes, by what is free now.")] = False,
    kubeconfig: Kubeconfig = None,
    output: Output = Format.TABLE,
) -> None:
    """The best set of free GPUs, of a node or across nodes: fastest together, and leaving a fast set for the next job.

    By what the wires and algorithms are known to carry; sets that are alike are compared once. --minimum is held
    against bus bandwidth unless --of says link (of the wires that the set uses, one way: the 600 GB/s of an A100's data
    sheet are both ways of 300) or algorithm (message by time).

    Of several nodes one is taken where one holds the job, else as many GPUs of each of a few, from the innermost rack
    or block with room. With --cluster racks, free GPUs, degraded nodes and slow pairs are read from it.

    Examples:

        nvidia-smi topo -m | kopt bandwidth place - --count 4

        kopt bandwidth place topo.txt --count 2 --free 0,2,3,5,6,7 -o json

        kubectl get nodetopologies -o json | kopt bandwidth place - --count 16

        kopt bandwidth place --cluster --count 32 --minimum 100
    """
    operation, size_bytes = collective_of(kind), bytes_of(size)
    if cluster == bool(files):
        usage_error("name files, or read the cluster with --cluster", "FILE")
    from kopt.cli.bandwidth import place as across
    from kopt.cli.topology.input import nodes_in

    nodes = [] if cluster else nodes_in(files or [])
    if len(nodes) == 1:
        _show_best_of_node(nodes[0], across.SetRequest(count, operation, size_bytes, minimum, of), free, gpu, output)
        return
    if free:
        usage_error("indexes are of one node; with --cluster it is known what is free", "--free")
    places = across.of_cluster(kubeconfig) if cluster else across.of_files(nodes, gpu)
    across.show_best_across_nodes(places, across.SetRequest(count, operation, size_bytes, minimum, of), output)


def _show_best_of_node(node: NodeTopology, question: "SetRequest", free: str, gpu: str, output: Format) -> None:
    operation, size_bytes, count, minimum, of = (
        question.collective,
        question.bytes,
        question.count,
        question.minimum,
        question.of,
    )
    from kopt.topology.from_node import machine_from
    from kopt.topology.sets.within_node import choose_gpus, link_gbps

    gpu_indexes = tuple(sorted(topology_gpu.index for topology_gpu in node.gpus))
    open_ = indexes(free) if free else gpu_indexes
    missing = sorted(set(open_) - set(gpu_indexes))
    if missing:
        present = ", ".join(map(str, gpu_indexes)) or "none"
        usage_error(f"GPU {missing[0]} is not there; the node has {present}", "--free")
    machine = machine_from(node, gpu=gpu)
    set_choice = choose_gpus(machine, open_, count, operation, size_bytes)
    if set_choice is None:
        raise Refused(f"{count} GPUs are asked for, and {len(set(open_))} are free")
    ranks = max(2, count)
    reached = {
        BandwidthKind.BUS: set_choice.gbps,
        BandwidthKind.ALGORITHM: set_choice.gbps / operation.bus_factor(ranks),
        BandwidthKind.LINK: link_gbps(machine, set_choice.gpus),
    }
    if reached[of] < minimum:
        raise Refused(f"the best set reaches {reached[of]:.3g} GB/s of {of} bandwidth, {minimum:.3g} are asked for")
    rows = [
        KindRow(bandwidth_kind.value, reached[bandwidth_kind], None, None, _KINDS[bandwidth_kind.value])
        for bandwidth_kind in reached
    ]
    reason = set_choice.reason(len(set(open_)))
    document = {
        "schema": "kopt/v1",
        "gpus": list(set_choice.gpus),
        "collective": operation.value,
        "bytes": size_bytes,
        **{f"{bandwidth_kind.value}_gigabytes_per_s": reached[bandwidth_kind] for bandwidth_kind in reached},
        "worst_gigabytes_per_s": set_choice.slowest_gbps,
        "rest_gigabytes_per_s": set_choice.rest_gbps,
        "considered": set_choice.considered,
        "exact": set_choice.exact,
        "unknown": list(machine.node.unknown),
        "reasons": [reason.to_dict()],
    }
    title = f"GPUs {','.join(map(str, set_choice.gpus))}"
    remarks = [reason.message, *(f"unknown: {name}" for name in machine.node.unknown)]
    show(Answer("placement", rows, title=title, remarks=remarks, document=document), output)


app.command("pairs")(pairs_command)


def _write(path: Path, estimates: list[BandwidthEstimate]) -> None:
    """Whole or not at all."""
    if not path.parent.is_dir():
        raise Refused(f"{path.parent}: there is no such folder")
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(handle, "w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(("row", "latency_us", "algbw_GBps", "busbw_GBps", "low", "high"))
            for number, bandwidth_estimate in enumerate(estimates):
                small = bandwidth_estimate.bytes <= 65536
                low = bandwidth_estimate.latency_low_us if small else bandwidth_estimate.bus_low_gigabytes_per_s
                high = bandwidth_estimate.latency_high_us if small else bandwidth_estimate.bus_high_gigabytes_per_s
                figures = (
                    bandwidth_estimate.latency_us,
                    bandwidth_estimate.algorithm_gigabytes_per_s,
                    bandwidth_estimate.bus_gigabytes_per_s,
                    low,
                    high,
                )
                writer.writerow((number, *(f"{value:.6g}" for value in figures)))
        Path(name).chmod(0o644)
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def _node(files: list[str]) -> NodeTopology:
    from kopt.cli.topology.input import parsed

    result = parsed(files)
    if not isinstance(result, NodeTopology):
        raise Refused("this describes a fabric or measurements; give the output of a tool that shows one node")
    return result


def _answer(bandwidth_estimate: BandwidthEstimate) -> Answer:
    algorithm = bandwidth_estimate.algorithm_gigabytes_per_s
    share = algorithm / bandwidth_estimate.bus_gigabytes_per_s
    rows = [
        KindRow(
            "algorithm",
            algorithm,
            bandwidth_estimate.bus_low_gigabytes_per_s * share,
            bandwidth_estimate.bus_high_gigabytes_per_s * share,
            _KINDS["algorithm"],
        ),
        KindRow(
            "bus",
            bandwidth_estimate.bus_gigabytes_per_s,
            bandwidth_estimate.bus_low_gigabytes_per_s,
            bandwidth_estimate.bus_high_gigabytes_per_s,
            _KINDS["bus"],
        ),
        KindRow("link", bandwidth_estimate.link_gigabytes_per_s, None, None, _KINDS["link"]),
    ]
    where = f"GPUs {', '.join(map(str, bandwidth_estimate.gpus))}" + (
        f" of each of {bandwidth_estimate.nodes} nodes" if bandwidth_estimate.nodes > 1 else ""
    )
    title = f"{bandwidth_estimate.collective} of {format_bytes(bandwidth_estimate.bytes)} on {where}"
    time = f"{format_number(bandwidth_estimate.latency_us)} µs ({format_number(bandwidth_estimate.latency_low_us)} to "
    remarks = [
        f"takes {time}{format_number(bandwidth_estimate.latency_high_us)} µs)",
        *(reason.message for reason in bandwidth_estimate.reasons),
    ]
    document: dict[str, Any] = bandwidth_estimate.to_dict()
    return Answer("bandwidths", rows, title=title, remarks=remarks, document=document)
