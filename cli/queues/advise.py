"""``kopt queues advise``: quotas by what queues demanded, written only when asked, and given back."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from kopt.cli.errors import Refused
from kopt.cli.open_cluster import open_cluster
from kopt.cli.output import Answer, Format, column, show
from kopt.cli.queues.manifests import refused
from kopt.core.units import counted, format_gpus, format_span

if TYPE_CHECKING:
    from kopt.cluster.client.api import Kube
    from kopt.core.scheduling.queue_demand import QueueDemandHistory
    from kopt.policies.queues import QueueTree
    from kopt.policies.queues.advice import QuotaAdvice

Object = dict[str, Any]


def _gpus(milli: int | None) -> str:
    return "" if milli is None else format_gpus(milli)


def _percent(share: float) -> str:
    return f"{share:.0%}"


@dataclass(frozen=True)
class AdvisedRow:
    """Amounts are thousandths of a GPU; shares are of hours, the newer ones counting more."""

    queue: str = column("queue")
    pool: str = column("pool", drop=3)
    quota: int = column("quota", show=_gpus)
    advised: int = column("advised", show=_gpus)
    low: int | None = column("from", show=_gpus, drop=2)
    high: int | None = column("to", show=_gpus, drop=2)
    above_before: float = column("above quota", show=_percent)
    above_after: float = column("then", show=_percent)
    code: str = column("code", drop=1)
    reason: str = column("reason", wide=True)


@dataclass(frozen=True)
class WrittenRow:
    """A KaiwoQueue and what became of it."""

    queue: str = column("queue")
    result: str = column("result")


def advise_quotas(
    prometheus: str, since_s: int, token_file: Path | None, kubeconfig: Path | None, output: Format, *, apply: bool
) -> None:
    """Shows the advice, and with ``apply`` writes it. Ends with status 1 where something could not be written."""
    from kopt.policies.queues.advice import METHOD

    history = read_history(prometheus, since_s, token_file)
    advice, written = asyncio.run(_advised(history, kubeconfig, apply=apply))
    rows = [_row(each) for each in sorted(advice, key=lambda each: (each.queue, each.pool))]
    changes = [each for each in advice if each.changes]
    remarks = [f"By {METHOD} from {format_span(since_s)} of demand, used and waited for."]
    if changes and not apply:
        remarks.append("Nothing is written: --apply does, and --undo gives back what was before.")
    if apply:
        remarks.append(f"{counted(len(written), 'KaiwoQueue')} written; kopt queues advise --undo gives back.")
    header = {"method": METHOD, "since_s": since_s, "applied": list(written)}
    empty = "no KaiwoQueue has a quota of GPUs"
    show(Answer("advice", rows, header=header, remarks=remarks, empty=empty, hide_header=True), output)


def undo_advice(kubeconfig: Path | None, output: Format) -> None:
    """Gives back the quotas from before all advice. Ends with status 1 where one could not be."""
    results, failed = asyncio.run(_undone(kubeconfig))
    rows = [WrittenRow(queue, result) for queue, result in results]
    show(Answer("queues", rows, empty="no quota was written on advice"), output)
    if failed:
        raise typer.Exit(1)


def read_history(url: str, since_s: int, token_file: Path | None) -> "QueueDemandHistory":
    """Hours that a Prometheus has scraped. Raises Refused."""
    from kopt.data.demand.prometheus import PrometheusError, Server
    from kopt.data.queue_demand import read_queue_demand

    try:
        token = "" if token_file is None else token_file.read_text(encoding="utf-8").strip()
        with Server(url, token=token) as server:
            server.check_ready()
            return read_queue_demand(server, since_s)
    except (PrometheusError, OSError, UnicodeDecodeError) as error:
        raise Refused(f"demand of queues cannot be read: {error}") from error


async def _advised(
    history: "QueueDemandHistory", kubeconfig: Path | None, *, apply: bool
) -> "tuple[list[QuotaAdvice], list[str]]":
    """The advice, and the queues that were written."""

    async with open_cluster(
        kubeconfig,
        missing="the cluster has no KaiwoQueues: apply deploy/chart/crds",
        failed="the cluster does not answer as it should",
    ) as kube:
        tree, documents = await _tree(kube)
        advice = _advice(tree, history)
        return advice, await _write(kube, documents, advice) if apply else []


async def _tree(kube: "Kube") -> "tuple[QueueTree, dict[str, Object]]":
    from kopt.cluster.client.resources import KAIWO_POOLS, KAIWO_QUEUES
    from kopt.cluster.objects.custom.kaiwo_queue import pool_of, queue_of
    from kopt.policies.queues import QueueTree

    queues, pools = await asyncio.gather(kube.list(KAIWO_QUEUES), kube.list(KAIWO_POOLS))
    try:
        tree = QueueTree.of(map(queue_of, queues.items), map(pool_of, pools.items))
    except ValueError as error:
        raise refused(error) from None
    return tree, {document["metadata"]["name"]: document for document in queues.items}


def _advice(tree: "QueueTree", history: "QueueDemandHistory") -> "list[QuotaAdvice]":
    from kopt.cluster.workloads.requests.pods import is_gpu
    from kopt.core.scheduling.queue_tree import GPU
    from kopt.policies.queues.quota_groups import advised_quotas

    return advised_quotas(tree, history, lambda name: name == GPU or is_gpu(name))


async def _write(kube: "Kube", documents: dict[str, Object], advice: "Sequence[QuotaAdvice]") -> list[str]:
    """Quotas that shrink first, so that siblings never have more than their parent; all or none.

    Raises Refused where one cannot be written, after what was written has been given back.
    """
    from kopt.cluster.client.api import ApiError
    from kopt.cluster.client.resources import KAIWO_QUEUES
    from kopt.cluster.objects.annotations import AnnotationError
    from kopt.cluster.objects.custom.advised_quota import with_quotas

    written: list[Object] = []
    for name, quotas in _changes(advice):
        try:
            written.append(await kube.replace(KAIWO_QUEUES, with_quotas(documents[name], quotas)))
        except (ApiError, AnnotationError) as error:
            unrestored = await _give_back(kube, written, documents)
            rest = (
                f"; {', '.join(unrestored)} could not be given back: run kopt queues advise --undo"
                if unrestored
                else ""
            )
            raise Refused(f"KaiwoQueue {name} cannot be written, so nothing is: {error}{rest}") from error
    return [document["metadata"]["name"] for document in written]


def _changes(advice: "Sequence[QuotaAdvice]") -> list[tuple[str, dict[tuple[str, str], int]]]:
    """By queue what to write, those that lose most first."""
    by_queue: dict[str, dict[tuple[str, str], int]] = {}
    grows: dict[str, int] = {}
    for each in advice:
        if each.changes:
            by_queue.setdefault(each.queue, {})[each.pool, each.resource] = each.advised
            grows[each.queue] = grows.get(each.queue, 0) + each.advised - each.quota
    return [(name, by_queue[name]) for name in sorted(by_queue, key=lambda name: (grows[name], name))]


async def _give_back(kube: "Kube", written: Sequence[Object], documents: dict[str, Object]) -> list[str]:
    """The objects as they were, the last written first; the names of those that could not be."""
    from kopt.cluster.client.api import ApiError
    from kopt.cluster.client.resources import KAIWO_QUEUES

    unrestored = []
    for document in reversed(written):
        name, metadata = document["metadata"]["name"], document["metadata"]
        before = documents[name]
        version = {"resourceVersion": metadata["resourceVersion"]}
        try:
            await kube.replace(KAIWO_QUEUES, before | {"metadata": before["metadata"] | version})
        except ApiError:
            unrestored.append(name)
    return unrestored


async def _undone(kubeconfig: Path | None) -> tuple[list[tuple[str, str]], bool]:
    from kopt.cluster.client.api import ApiError
    from kopt.cluster.client.resources import KAIWO_QUEUES
    from kopt.cluster.objects.annotations import AnnotationError
    from kopt.cluster.objects.custom.advised_quota import without_advice

    results, failed = list[tuple[str, str]](), False
    async with open_cluster(
        kubeconfig,
        missing="the cluster has no KaiwoQueues: apply deploy/chart/crds",
        failed="the cluster does not answer as it should",
    ) as kube:
        advised = []
        for document in (await kube.list(KAIWO_QUEUES)).items:
            name = document["metadata"]["name"]
            try:
                if (restored := without_advice(document)) is not None:
                    advised.append((name, restored))
            except AnnotationError as error:
                results.append((name, str(error)))
                failed = True
        for name, restored in sorted(advised, key=lambda item: (item[1].grows, item[0])):
            try:
                await kube.replace(KAIWO_QUEUES, restored.document)
                results.append((name, restored.sentence))
            except ApiError as error:
                results.append((name, f"not given back: {error}"))
                failed = True
    return results, failed


def _row(each: "QuotaAdvice") -> AdvisedRow:
    return AdvisedRow(
        each.queue,
        each.pool,
        each.quota,
        each.advised,
        each.low,
        each.high,
        round(each.above_before, 6),
        round(each.above_after, 6),
        each.reason.code,
        each.reason.message,
    )
