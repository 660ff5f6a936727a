"""``kopt hardware``: what the nodes of a cluster have, whatever shows it."""

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from kopt.cli.open_cluster import open_cluster
from kopt.cli.options import Kubeconfig, Output
from kopt.cli.output import Answer, Format, column, show
from kopt.core.hardware.inventory import Hardware, Kind, is_model
from kopt.core.units import GIB

if TYPE_CHECKING:
    from kopt.controllers.overview.devices.gpus import HardwareList


@dataclass(frozen=True)
class HardwareRow:
    """Like accelerators of a node; ``count`` 0: only labels show that there is one."""

    node: str = column("node")
    kind: str = column("kind")
    model: str = column("model")
    count: int = column("count", show=lambda number: str(number) if number else "?")
    memory_bytes: int = column("memory", show=lambda size: f"{size / GIB:.0f} GiB" if size else "–", drop=2)
    resource: str = column("asked for by", show=lambda name: name or "nothing", drop=1)
    source: str = column("source")


def hardware(
    kind: Annotated[Kind | None, typer.Option("--kind", help="Only these.", case_sensitive=False)] = None,
    model: Annotated[str, typer.Option("--model", metavar="NAME", help="Only these, as in kaiwo.ai/hardware.")] = "",
    kubeconfig: Kubeconfig = None,
    output: Output = Format.TABLE,
) -> None:
    """List the accelerators of the cluster: GPUs, TPUs and FPGAs, with what shows them.

    Devices of drivers (source slice), resources of device plugins (allocatable), and what labels of Node Feature
    Discovery show while nothing hands it out (label). One of them by one with its holders: `kopt gpus`. A workload asks
    for a model by the annotation `kaiwo.ai/hardware`.

    Examples:

        kopt hardware

        kopt hardware --model h100 -o json

        kopt hardware --kind fpga
    """
    from kopt.controllers.overview.devices.gpus import read_hardware

    async def reading() -> "HardwareList":
        async with open_cluster(kubeconfig) as kube:
            return await read_hardware(kube)

    listed = asyncio.run(reading())
    try:
        wanted = [
            item for item in listed.hardware if kind in (None, item.kind) and (not model or is_model(model, item.model))
        ]
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--model") from None
    show(answer(wanted, listed.unread), output)


def answer(listed: list[Hardware], unread: tuple[str, ...] = ()) -> Answer:
    """Totals by model below."""
    rows = [
        HardwareRow(
            item.node, item.kind.value, item.model, item.count, int(item.memory_bytes), item.resource, item.source.value
        )
        for item in listed
    ]
    models = sorted({item.model for item in listed})
    remarks = [f"{model}: {_total(listed, model)}." for model in models]
    remarks += [f"You may not read {', '.join(unread)}: some may be missing."] if unread else []
    return Answer("hardware", rows, remarks=remarks, empty="no node has an accelerator of that kind that you may read")


def _total(listed: list[Hardware], model: str) -> str:
    own = [item for item in listed if item.model == model]
    nodes = len({item.node for item in own})
    return f"{sum(item.count for item in own)} on {nodes} node{'s' if nodes > 1 else ''}"
