"""``kopt fractions``: shares of GPUs, who guarantees them, and what a manifest would be given before it is created."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kopt.cli.errors import Refused
from kopt.cli.open_cluster import open_cluster
from kopt.cli.options import Kubeconfig, Output
from kopt.cli.output import Answer, Format, column, show
from kopt.cli.sharing import commands as sharing
from kopt.core.units import GIB, WHOLE_GPU, format_gpus
from kopt.core.workload.gpu_share import Enforcement, ShareExecutor, ShareField
from kopt.core.workload.share_enforcement import ENFORCED, ISOLATIONS

if TYPE_CHECKING:
    from kopt.cluster.workloads.shares.offers import SharedGpus
    from kopt.controllers.admission.evaluation import FixedState
    from kopt.controllers.admission.shares.plan import ManifestPlan
    from kopt.core.scheduling.devices import GpuDevice

app = typer.Typer(no_args_is_help=True, help="Shares of GPUs: what is guaranteed, by whom, and what is enforced.")
app.add_typer(sharing.app, name="sharing")
_SEVERAL = "contested"


def _joined(names: Sequence[str]) -> str:
    return ", ".join(names) or "nothing"


@dataclass(frozen=True)
class FractionRow:
    """A GPU, or a replica of one. ``executor`` is ``contested`` where several would hand out the same GPUs; shares are
    written for none of them there. ``enforced``: fields of a request; ``isolation``: what can be asked for."""

    node: str = column("node")
    gpu: str = column("GPU")
    executor: str = column("executor")
    guaranteed_milli_gpu: int = column("guaranteed", show=format_gpus)
    free_milli_gpu: int = column("free", show=format_gpus)
    shares: int = column("shares", drop=2)
    memory_bytes: int = column("memory", show=lambda size: f"{size / GIB:.0f} GiB" if size else "", drop=4)
    enforced: Sequence[str] = column("enforced", show=_joined, drop=1)
    isolation: Sequence[str] = column("isolation", show=_joined, drop=3)


@dataclass(frozen=True)
class ShareRow:
    """One pod template of a manifest. ``patch`` and ``templates`` are of the whole manifest."""

    workload: str = column("workload")
    share: str = column("share")
    executor: str = column("executor")
    nodes: int = column("nodes")
    enforced: Sequence[str] = column("enforced", show=_joined, drop=1)
    message: str = column("message")
    patch: Sequence[dict[str, Any]] = column("patch", wide=True)
    templates: Sequence[dict[str, Any]] = column("templates", wide=True)


@app.command("list")
def list_fractions(
    node: Annotated[str, typer.Option("--node", metavar="NAME", help="Only GPUs of this node.")] = "",
    kubeconfig: Kubeconfig = None,
    output: Output = Format.TABLE,
) -> None:
    """List the GPUs of which shares can be had: executor, what is guaranteed of each, and what is enforced.

    Read with your own rights. What `enforced` and `isolation` mean is in docs/fractions.md.

    Examples:

        kopt fractions list

        kopt fractions list --node gpu-7 -o json
    """
    gpus, sharing = asyncio.run(_read(kubeconfig))
    show(listed([gpu for gpu in gpus if node in ("", gpu.node)], sharing), output)


def listed(gpus: "Sequence[GpuDevice]", sharing: "SharedGpus") -> Answer:
    """Of nodes that offer shares."""
    offered = {each.node: each.offers for each in sharing.offered() if each.offers}
    rows = [_row(gpu, offered[gpu.node]) for gpu in gpus if gpu.node in offered]
    by_executor: dict[str, int] = {}
    for offers in offered.values():
        name = str(offers[0].executor) if len(offers) == 1 else _SEVERAL
        by_executor[name] = by_executor.get(name, 0) + 1
    remarks = [f"{name}: {nodes} node{'s' if nodes > 1 else ''}." for name, nodes in sorted(by_executor.items())]
    return Answer("gpus", rows, remarks=remarks, empty="no node hands out shares of GPUs")


def _row(gpu: "GpuDevice", offers: Sequence[Any]) -> FractionRow:
    executor = offers[0].executor if len(offers) == 1 else None
    return FractionRow(
        gpu.node,
        gpu.name,
        _SEVERAL if executor is None else str(executor),
        min(WHOLE_GPU, sum(holder.milli_gpu for holder in gpu.holders)),
        gpu.free_milli_gpu,
        len(gpu.holders),
        int(gpu.memory_bytes),
        _enforced(executor),
        sorted(ISOLATIONS[executor]) if executor is not None else [],
    )


def _enforced(executor: ShareExecutor | None) -> list[str]:
    row = {} if executor is None else ENFORCED[executor]
    return [str(field) for field, how in row.items() if how is Enforcement.ENFORCED]


@app.command("table")
def table(output: Output = Format.TABLE) -> None:
    """Show what each executor enforces of a request; no cluster is asked.

    Examples:

        kopt fractions table
    """
    rows = [
        ExecutorRow(
            str(executor),
            row[ShareField.FRACTION],
            row[ShareField.MEMORY],
            row[ShareField.FRACTION_LIMIT],
            row[ShareField.MEMORY_LIMIT],
            sorted(ISOLATIONS[executor]),
        )
        for executor, row in ENFORCED.items()
    ]
    show(Answer("executors", rows), output)


@dataclass(frozen=True)
class ExecutorRow:
    """Each field: ``enforced``, ``not enforced`` or ``not expressible``."""

    executor: str = column("executor")
    fraction: str = column("fraction")
    memory: str = column("memory")
    fraction_limit: str = column("fraction limit")
    memory_limit: str = column("memory limit")
    isolation: Sequence[str] = column("isolation", show=_joined)


@app.command("plan")
def plan(
    manifest: Annotated[Path, typer.Argument(metavar="MANIFEST", help="YAML of workloads; - is standard input.")],
    namespace: Annotated[str, typer.Option("-n", "--namespace", help="For manifests without one.")] = "default",
    kubeconfig: Kubeconfig = None,
    output: Output = Format.TABLE,
) -> None:
    """Show which executor would give the shares of a manifest, and what would be written into it; nothing is.

    As in mode enforce. JSON and YAML have the patch and the claim templates. Exits 1 where a manifest would be refused.

    Examples:

        kopt fractions plan serve.yaml

        kopt fractions plan serve.yaml -n team-a -o json
    """
    from kopt.cli.queues.manifests import documents

    loaded = [item for item in documents(manifest) if isinstance(item, dict)]
    plans = asyncio.run(_plans(kubeconfig, loaded, namespace))
    show(planned(plans), output)
    if any(each.refusal for each in plans):
        raise typer.Exit(1)


def planned(plans: "Sequence[ManifestPlan]") -> Answer:
    """One row for each share, and for each manifest that is refused without one."""
    rows: list[ShareRow] = []
    for each in plans:
        workload = f"{each.kind} {each.namespace}/{each.name}"
        written = list(each.patch), list(each.templates)
        for share in each.shares:
            offer = share.choice.offer
            of_request = {str(field) for field in share.request.fields}
            enforced = [field for field in _enforced(offer.executor if offer else None) if field in of_request]
            name = str(offer.executor) if offer else ""
            reasons = (share.reason, share.charged_otherwise)
            message = " ".join(reason.message for reason in reasons if reason is not None)
            rows.append(ShareRow(workload, str(share.request), name, share.choice.nodes, enforced, message, *written))
        if each.refusal and not each.shares:
            rows.append(ShareRow(workload, "", "", 0, [], each.refusal, [], []))
    refused = sum(bool(each.refusal) for each in plans)
    remarks = [f"Of {len(plans)} workloads {refused} would be refused in mode enforce."] if refused else []
    return Answer("shares", rows, remarks=remarks, empty="no workload in it asks for a share of a GPU")


async def _read(kubeconfig: Path | None) -> "tuple[Sequence[GpuDevice], SharedGpus]":
    from kopt.cluster.workloads.shares.offers import read_sharing
    from kopt.controllers.overview.devices.gpus import read_gpus

    async with open_cluster(kubeconfig) as kube:
        listing, sharing = await asyncio.gather(read_gpus(kube), read_sharing(kube))
    return listing.gpus, sharing


async def _plans(kubeconfig: Path | None, loaded: list[dict[str, Any]], namespace: str) -> "list[ManifestPlan]":
    from kopt.cluster.client.api import ApiError, connect
    from kopt.cluster.workloads.shares.offers import read_sharing
    from kopt.controllers.admission.policy import PolicyError
    from kopt.controllers.admission.shares.plan import plan_manifest

    try:
        async with connect(kubeconfig) as kube:
            state, sharing = await asyncio.gather(_state(kube), read_sharing(kube))
    except (ApiError, PolicyError) as error:
        raise Refused(f"the cluster cannot be read: {error}") from error
    plans = (plan_manifest(document, state, sharing, namespace) for document in loaded)
    return [each for each in plans if each is not None]


async def _state(kube: Any) -> "FixedState":
    from kopt.controllers.admission.state import read_once

    return await read_once(kube)
