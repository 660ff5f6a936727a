"""``kopt topology``: what links a node's GPUs, read from the outputs of tools, without a server."""

from typing import TYPE_CHECKING, Annotated

import typer

from kopt.cli.options import Output
from kopt.cli.output import Format, show
from kopt.cli.progress import print_status
from kopt.cli.topology.show import show_command

if TYPE_CHECKING:
    pass

app = typer.Typer(no_args_is_help=True, help="What links a node's GPUs to one another and to its network cards.")

Files = Annotated[
    list[str],
    typer.Argument(metavar="FILE...", help="Outputs of tools, folders copied from /sys; - is standard input."),
]


@app.callback()
def topology() -> None:
    """What links a node's GPUs to one another and to its network cards."""


@app.command("parse")
def parse_command(files: Files, output: Output = Format.TABLE) -> None:
    """Any topology tool's output as one node: GPUs, links, network cards, switches.

    The tool is found by what it prints: nvidia-smi (topo -m, topo -p2p, nvlink -s, -q, -L, mig, csv), rocm-smi,
    amd-smi, NCCL's and RCCL's XML, KFD, PCI and InfiniBand folders of /sys, lspci, ibv_devinfo, ibstat, rdma link,
    ibdev2netdev, dcgm-exporter, AMD's exporter, gpustack-runtime; also fabrics (ibnetdiscover, topograph) and logs of
    nccl-tests.

    Several files are one node: GPUs are the same when their PCI addresses are. Colours, time stamps and messages around
    an output do no harm; an output that is cut or contradicts itself is refused with its line.

    Examples:

        nvidia-smi topo -m | kopt topology parse -

        kopt topology parse topo.txt nvlink.txt nvidia-smi-q.txt -o json

        rocm-smi --showtopo | kopt topology parse - -o json | jq '.links[] | select(.type == "XGMI")'

        kopt topology parse /sys/class/kfd/kfd/topology
    """
    from kopt.cli.topology.input import parsed
    from kopt.cli.topology.view import answer

    whole = parsed(files)
    if output is not Format.TABLE:
        for warning in whole.warnings:
            print_status(f"kopt: warning: {warning}")
    show(answer(whole), output)


app.command("show")(show_command)
