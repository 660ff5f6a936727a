"""``kopt gpus``: the GPUs of a cluster, who holds them, and what is wrong with them."""

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from kopt.cli.errors import Refused
from kopt.cli.open_cluster import open_cluster
from kopt.cli.options import Kubeconfig, Output
from kopt.cli.output import Answer, Format, column, show
from kopt.core.scheduling.devices import GpuDevice
from kopt.core.units import GIB, WHOLE_GPU

if TYPE_CHECKING:
    from kopt.controllers.overview.devices.gpus import GpuList

_MOST_HOLDERS = 2


@dataclass(frozen=True)
class HolderRow:
    namespace: str
    pod: str
    milli_gpu: int
    assumed: bool


def _held_by(holders: list[HolderRow]) -> str:
    named = [
        f"{holder.namespace}/{holder.pod}"
        + (f" ({holder.milli_gpu / WHOLE_GPU:g})" if holder.milli_gpu < WHOLE_GPU else "")
        + ("?" if holder.assumed else "")
        for holder in holders[:_MOST_HOLDERS]
    ]
    more = len(holders) - _MOST_HOLDERS
    return ", ".join(named) + (f" and {more} more" if more > 0 else "")


@dataclass(frozen=True)
class GpuRow:
    """A GPU, or a device of a driver. ``free_milli_gpu`` is what nobody holds, also where its node takes no pods."""

    node: str = column("node")
    gpu: str = column("GPU")
    resource: str = column("resource", drop=1)
    model: str = column("model", drop=3)
    memory_bytes: int = column("memory", show=lambda size: f"{size / GIB:.0f} GiB" if size else "", drop=4)
    state: str = column("state")
    free_milli_gpu: int = column("free", show=lambda milli: f"{milli / WHOLE_GPU:g}", drop=5)
    holders: list[HolderRow] = column("held by", show=_held_by)
    problem: str = column("problem", drop=2)


def gpus(
    node: Annotated[str, typer.Option("--node", metavar="NAME", help="Only those of this node.")] = "",
    resource: Annotated[
        str,
        typer.Option("--resource", metavar="NAME", help="Only these: nvidia.com/gpu, or a driver, gpu.nvidia.com."),
    ] = "",
    free: Annotated[bool, typer.Option("--free", help="Only those of which something can be had.")] = False,
    kubeconfig: Kubeconfig = None,
    output: Output = Format.TABLE,
) -> None:
    """List the GPUs of the cluster: model, memory, who holds which part of them, and what is wrong with them.

    GPUs that nodes offer as resources, partitions included, and devices of drivers (dynamic resource allocation). A
    question mark stands after a pod of which nothing says which of the node's GPUs it has. Problems are what our agents
    found worse than before, what speaks against a GPU's health (`kopt health`), taints, and nodes that take no pods.
    Read with your own rights.

    Examples:

        kopt gpus

        kopt gpus --free --resource nvidia.com/gpu

        kopt gpus --node gpu-7 -o json
    """
    from kopt.controllers.overview.devices.gpus import read_gpus

    async def reading() -> "GpuList":
        async with open_cluster(kubeconfig) as kube:
            return await read_gpus(kube)

    listed = asyncio.run(reading())
    of_node = [gpu for gpu in listed.gpus if node in ("", gpu.node)]
    if node and not of_node:
        raise Refused(f"no node {node!r} with GPUs; there are {_few(sorted({gpu.node for gpu in listed.gpus}))}")
    of_resource = [gpu for gpu in of_node if resource in ("", gpu.resource)]
    if resource and not of_resource:
        raise Refused(f"no GPUs of {resource!r}; there are {_few(sorted({gpu.resource for gpu in of_node}))}")
    show(answer(of_resource, listed.unread, free=free), output)


def answer(listed: list[GpuDevice], unread: tuple[str, ...] = (), *, free: bool = False) -> Answer:
    """Counts are of all, whatever is shown."""
    selected = [gpu for gpu in listed if not free or (gpu.takes_pods and gpu.free_milli_gpu)]
    remarks = [_summary(listed, resource) for resource in sorted({gpu.resource for gpu in listed})]
    remarks += [f"You may not read {', '.join(unread)}: GPUs may be missing, or only look free."] if unread else []
    rows = [
        GpuRow(
            gpu.node,
            gpu.name,
            gpu.resource,
            gpu.model,
            int(gpu.memory_bytes),
            gpu.state,
            gpu.free_milli_gpu,
            [HolderRow(holder.namespace, holder.pod, holder.milli_gpu, holder.assumed) for holder in gpu.holders],
            gpu.problems,
        )
        for gpu in selected
    ]
    empty = "no GPU is free" if free and listed else "no node offers GPUs that you may read"
    return Answer("gpus", rows, remarks=remarks, empty=empty)


def _summary(listed: list[GpuDevice], resource: str) -> str:
    gpus = [gpu for gpu in listed if gpu.resource == resource]
    by_state = {state: sum(gpu.state == state for gpu in gpus) for state in ("free", "shared", "held", "closed")}
    nodes = len({gpu.node for gpu in gpus})
    states = ", ".join(f"{number} {state}" for state, number in by_state.items() if number)
    return f"{resource}: {len(gpus)} on {nodes} node{'s' if nodes > 1 else ''}, {states}."


def _few(names: list[str]) -> str:
    return ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "") if names else "none"
