"""``kopt bandwidth``: what a set of GPUs reaches together, without a server."""

import csv
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kopt.cli.bandwidth_pairs import pairs_command
from kopt.cli.edge import Refused, usage_error
from kopt.cli.options import Output
from kopt.cli.output import Answer, Format, column, format_number, show
from kopt.cli.progress import say
from kopt.core.bandwidth import MAX_BYTES, BandwidthError, BandwidthEstimate, BandwidthKind, Collective, collective
from kopt.core.topology import NodeTopology
from kopt.core.units import format_bytes, parse_bytes
from kopt.serving.environment import load_settings

if TYPE_CHECKING:
    from kopt.cli.bandwidth_place import Asked

app = typer.Typer(no_args_is_help=True, help="Latency and bandwidth of collectives on a set of GPUs.")
_COLLECTIVES = ", ".join(one.value for one in Collective)

Files = Annotated[
    list[str],
    typer.Argument(metavar="FILE...", help="A tool's output, or what `topology parse` made; - is stdin."),
]
Table = Annotated[Path, typer.Argument(metavar="IN.csv", help="Hardware, collective and size in each row; also .gz.")]
Gpus = Annotated[str, typer.Option("--gpus", metavar="LIST", help="Indexes in the topology: 0,1,2,3 or 0-7.")]
Kind = Annotated[str, typer.Option("--collective", metavar="NAME", help=f"One of {_COLLECTIVES}.")]
Size = Annotated[str, typer.Option("--bytes", metavar="SIZE", help="The message: 64KiB, 1GiB, or a number of bytes.")]
Nodes = Annotated[int, typer.Option("--nodes", min=1, max=100_000, help="So many nodes like this one.")]
Gpu = Annotated[str, typer.Option("--gpu", metavar="MODEL", help="The model, where the tool does not name it: MI300X.")]
Nics = Annotated[str, typer.Option("--nics", metavar="TEXT", help="Network cards of a node: '8x NDR400 IB'.")]
Software = Annotated[str, typer.Option("--software", metavar="TEXT", help="'nccl 2.27', 'aws-ofi-nccl', 'TCP'.")]
Model = Annotated[str, typer.Option("--model", metavar="MODEL", help="champion, a version number, or shipped.")]
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
    gpus: Gpus = "", kind: Kind = "all_reduce", size: Size = "1GiB", nodes: Nodes = 1, gpu: Gpu = "", nics: Nics = "",
    software: Software = "", model: Model = "champion", output: Output = Format.TABLE,
) -> None:  # fmt: skip
    """What a set of GPUs reaches together in one collective: time, algorithm and bus bandwidth with 90 % intervals.

    Without --gpus all of the node's GPUs. Link speeds come from the tools, else from the GPU model; where neither is
    known the answer says "unknown topology" and its interval is wide.

    Examples:

        nvidia-smi topo -m | kopt bandwidth estimate - --gpus 0,1,2,3 --gpu H100

        kopt bandwidth estimate topo.json --gpus 0-7 --collective all_to_all --bytes 256MiB

        kopt bandwidth estimate topo.txt --nodes 16 --nics '8x NDR400 IB' -o json
    """
    from kopt.models.bandwidth import ask

    asked, size_bytes = asked_collective(kind), asked_bytes(size)
    node = _node(files)
    chosen = indexes(gpus) if gpus else tuple(sorted(one.index for one in node.gpus))
    found = ask.bandwidth(node, chosen, asked, size_bytes, nodes=nodes, gpu=gpu, nics=nics, software=software,
                          model=ask.load(model, load_settings()))  # fmt: skip
    show(_answer(found), output)


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
    from kopt.models.bandwidth.ask import load
    from kopt.models.bandwidth.rows import read_asked

    rows = read_asked(table)
    if out.resolve() == table.resolve():
        usage_error("--out would overwrite the table itself", "--out")
    predictor = load(model, load_settings())
    said = [predictor.estimate_set(one.gpus(), one.collective, one.bytes) for one in rows]
    _write(out, said)
    unknown = sum(one.unknown for one in said)
    told = f", {unknown} of them of unknown topology" if unknown else ""
    say(f"{len(said)} answers in {out}{told}")


@app.command()
def place(
    count: Annotated[int, typer.Option("--count", min=1, help="How many GPUs the job needs.")],
    files: Annotated[
        list[str] | None, typer.Argument(metavar="[FILE...]", help="Tools' outputs of one node, or a node in each.")
    ] = None,
    free: Annotated[str, typer.Option("--free", metavar="LIST", help="Those that are free; without it, all.")] = "",
    kind: Kind = "all_reduce", size: Size = "1GiB", gpu: Gpu = "",
    minimum: Annotated[float, typer.Option("--minimum", min=0.0, metavar="GB/s", help="Refuse sets below it.")] = 0.0,
    of: Annotated[BandwidthKind, typer.Option("--of", help="The bandwidth that --minimum means.")] = BandwidthKind.BUS,
    cluster: Annotated[bool, typer.Option("--cluster", help="On the cluster's nodes, by what is free now.")] = False,
    kubeconfig: Annotated[Path | None, typer.Option("--kubeconfig", help="Of the cluster, if not the usual.")] = None,
    output: Output = Format.TABLE,
) -> None:  # fmt: skip
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
    asked, size_bytes = asked_collective(kind), asked_bytes(size)
    if cluster == bool(files):
        usage_error("name files, or read the cluster with --cluster", "FILE")
    from kopt.cli import bandwidth_place as across
    from kopt.cli.topology import nodes_in

    nodes = [] if cluster else nodes_in(files or [])
    if len(nodes) == 1:
        _place_on_one(nodes[0], across.Asked(count, asked, size_bytes, minimum, of), free, gpu, output)
        return
    if free:
        usage_error("indexes are of one node; with --cluster it is known what is free", "--free")
    places = across.of_cluster(kubeconfig) if cluster else across.of_files(nodes, gpu)
    across.place_on(places, across.Asked(count, asked, size_bytes, minimum, of), output)


def _place_on_one(node: NodeTopology, question: "Asked", free: str, gpu: str, output: Format) -> None:
    asked, size_bytes, count, minimum, of = (
        question.collective, question.bytes, question.count, question.minimum, question.of
    )  # fmt: skip
    from kopt.policies.bandwidth.topology import machine_from
    from kopt.policies.topology.within import choose_gpus, link_gbps

    there = tuple(sorted(one.index for one in node.gpus))
    open_ = indexes(free) if free else there
    missing = sorted(set(open_) - set(there))
    if missing:
        usage_error(f"GPU {missing[0]} is not there; the node has {', '.join(map(str, there)) or 'none'}", "--free")
    machine = machine_from(node, gpu=gpu)
    found = choose_gpus(machine, open_, count, asked, size_bytes)
    if found is None:
        raise Refused(f"{count} GPUs are asked for, and {len(set(open_))} are free")
    ranks = max(2, count)
    reached = {BandwidthKind.BUS: found.gbps, BandwidthKind.ALGORITHM: found.gbps / asked.bus_factor(ranks),
               BandwidthKind.LINK: link_gbps(machine, found.gpus)}  # fmt: skip
    if reached[of] < minimum:
        raise Refused(f"the best set reaches {reached[of]:.3g} GB/s of {of} bandwidth, {minimum:.3g} are asked for")
    rows = [KindRow(one.value, reached[one], None, None, _KINDS[one.value]) for one in reached]
    reason = found.reason(len(set(open_)))
    document = {"schema": "kopt/v1", "gpus": list(found.gpus), "collective": asked.value, "bytes": size_bytes,
                **{f"{one.value}_gigabytes_per_s": reached[one] for one in reached},
                "worst_gigabytes_per_s": found.slowest_gbps, "rest_gigabytes_per_s": found.rest_gbps,
                "considered": found.considered, "exact": found.exact, "unknown": list(machine.node.unknown),
                "reasons": [reason.to_dict()]}  # fmt: skip
    title = f"GPUs {','.join(map(str, found.gpus))}"
    notes = [reason.message, *(f"unknown: {one}" for one in machine.node.unknown)]
    show(Answer("placement", rows, title=title, notes=notes, document=document), output)


app.command("pairs")(pairs_command)


def _write(path: Path, said: list[BandwidthEstimate]) -> None:
    """Whole or not at all."""
    if not path.parent.is_dir():
        raise Refused(f"{path.parent}: there is no such folder")
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(handle, "w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(("row", "latency_us", "algbw_GBps", "busbw_GBps", "low", "high"))
            for number, one in enumerate(said):
                small = one.bytes <= 65536
                low = one.latency_low_us if small else one.bus_low_gigabytes_per_s
                high = one.latency_high_us if small else one.bus_high_gigabytes_per_s
                figures = (one.latency_us, one.algorithm_gigabytes_per_s, one.bus_gigabytes_per_s, low, high)
                writer.writerow((number, *(f"{value:.6g}" for value in figures)))
        Path(name).chmod(0o644)
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def _node(files: list[str]) -> NodeTopology:
    from kopt.cli.topology import parsed

    found = parsed(files)
    if not isinstance(found, NodeTopology):
        raise Refused("this tells of a fabric or of measurements; give the output of a tool that shows one node")
    return found


def asked_collective(name: str) -> Collective:
    try:
        return collective(name)
    except BandwidthError as error:
        usage_error(str(error), "--collective")


def asked_bytes(text: str) -> int:
    try:
        size_bytes = int(parse_bytes(text))
    except ValueError as error:
        usage_error(str(error), "--bytes")
    if not 1 <= size_bytes <= MAX_BYTES:
        usage_error(f"{text} is no message; from 1 byte to {format_bytes(MAX_BYTES)} are understood", "--bytes")
    return size_bytes


def indexes(text: str) -> tuple[int, ...]:
    """``0,1,2,3`` or ``0-3,6``."""
    found: list[int] = []
    for part in text.replace(" ", "").split(","):
        first, _, last = part.partition("-")
        if not first.isdigit() or (last and not last.isdigit()) or len(first) > 4 or len(last) > 4:
            usage_error(f"{text!r} is no list of GPUs; write 0,1,2,3 or 0-7", "--gpus")
        found.extend(range(int(first), int(last or first) + 1))
    return tuple(found)


def _answer(found: BandwidthEstimate) -> Answer:
    spread = found.bus_high_gigabytes_per_s / found.bus_gigabytes_per_s
    algorithm = found.algorithm_gigabytes_per_s
    rows = [
        KindRow("algorithm", algorithm, algorithm / spread, algorithm * spread, _KINDS["algorithm"]),
        KindRow("bus", found.bus_gigabytes_per_s, found.bus_low_gigabytes_per_s, found.bus_high_gigabytes_per_s,
                _KINDS["bus"]),
        KindRow("link", found.link_gigabytes_per_s, None, None, _KINDS["link"]),
    ]  # fmt: skip
    where = f"GPUs {', '.join(map(str, found.gpus))}" + (f" of each of {found.nodes} nodes" if found.nodes > 1 else "")
    title = f"{found.collective} of {format_bytes(found.bytes)} on {where}"
    time = f"{format_number(found.latency_us)} µs ({format_number(found.latency_low_us)} to "
    notes = [f"takes {time}{format_number(found.latency_high_us)} µs)", *(one.message for one in found.reasons)]
    document: dict[str, Any] = found.to_dict()
    return Answer("bandwidths", rows, title=title, notes=notes, document=document)
