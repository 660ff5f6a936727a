"""Workloads that run in a cluster, with what the prediction endpoint says that they need."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kopt.cli.endpoint import DEADLINE_S, unanswered
from kopt.cli.errors import Refused
from kopt.cli.open_cluster import open_cluster
from kopt.cli.output import printable
from kopt.cli.script_arguments import MANIFESTS, read_manifest
from kopt.cli.sizing import measured
from kopt.core.settings import Settings

if TYPE_CHECKING:
    from kopt.cli.sizing.measured import Measurements
    from kopt.cluster.client.api import Kube
    from kopt.controllers.overview.running_workloads import Change, PodKind
    from kopt.core.workload.measured import MeasuredUse
    from kopt.serving.client.client import AsyncPredictionClient
    from kopt.serving.contract.size_advice import SizeAdvice

_AT_ONCE = 8
_OURS = "kaiwo.ai/"

Namespace = Annotated[str, typer.Option("-n", "--namespace", help="Only this namespace; default: all.")]


@dataclass(frozen=True)
class Sized:
    """One kind of pods of a workload. ``advice`` is None where the endpoint could say nothing, for the reason ``why``;
    ``change`` where there is nothing to change; ``answer`` is the endpoint's document. ``measured`` says what its pods
    used, where that was read, and ``remarks`` what is to be known about it."""

    pods: "PodKind"
    advice: "SizeAdvice | None" = None
    change: "Change | None" = None
    answer: Mapping[str, Any] | None = None
    why: str = ""
    measured: "MeasuredUse | None" = None
    window_s: int = 0
    remarks: tuple[str, ...] = ()

    @property
    def estimated_bytes(self) -> tuple[int | None, int | None, int | None]:
        """Peak, low and high by the code alone, whatever was measured; None where they are not known."""
        memory: Any = (self.answer or {}).get("memory") or {}
        return memory.get("peak_bytes"), memory.get("low_bytes"), memory.get("high_bytes")

    @property
    def saved_milli_gpu(self) -> int | None:
        """Of all its pods together."""
        saved = None if self.advice is None else self.advice.saved_milli_gpu
        return None if saved is None else saved * self.pods.pods.pods


def sized(
    settings: Settings,
    workload: str | None,
    kubeconfig: Path | None,
    namespace: str,
    measurements: "Measurements | None" = None,
) -> list[Sized]:
    """Every GPU workload of the cluster, or those that ``workload`` (KIND/NAME, or a manifest's file) names.

    Raises Refused where the cluster or the endpoint does not answer, and where nothing has that name.
    """
    return asyncio.run(_sized(settings, workload, kubeconfig, namespace, measurements))


async def _sized(
    settings: Settings,
    workload: str | None,
    kubeconfig: Path | None,
    namespace: str,
    measurements: "Measurements | None",
) -> list[Sized]:
    from kopt.serving.client.client import AsyncPredictionClient
    from kopt.serving.client.transport import EndpointFailure

    pod_kinds = [pod_kind async for pod_kind in _select(workload, kubeconfig, namespace)]
    try:
        async with AsyncPredictionClient(settings.endpoint, deadline_s=DEADLINE_S) as client:
            return await ask_all(client, pod_kinds, measurements)
    except EndpointFailure as error:
        raise Refused(unanswered(settings, str(error))) from error


async def _select(workload: str | None, kubeconfig: Path | None, namespace: str) -> "AsyncIterator[PodKind]":
    if workload is not None and (path := Path(workload)).suffix in MANIFESTS:
        for pod_kind in _in_manifest(path):
            yield pod_kind
        return
    from kopt.controllers.overview.running_workloads import running

    kind, name = ("", "") if workload is None else _named(workload)
    result = False
    async with open_cluster(kubeconfig) as kube:
        async for pod_kind in running(kube, namespace):
            if workload is None or (pod_kind.workload.name == name and _is_kind(pod_kind, kind)):
                result = True
                yield pod_kind
    if workload is not None and not result:
        location = f"namespace {namespace}" if namespace else "any namespace"
        raise Refused(f"no {kind} {name} that asks for GPUs runs in {location}; `kopt recommend --running` lists them")


def _in_manifest(path: Path) -> "list[PodKind]":
    from kopt.cluster.workloads.kinds import BY_KEY
    from kopt.controllers.overview.running_workloads import pods_of

    document = dict(read_manifest(path))
    metadata = document.get("metadata")
    # Templates in files often have neither; both have to be there for what follows.
    document["metadata"] = {
        "name": path.stem,
        "namespace": "default",
        **(metadata if isinstance(metadata, dict) else {}),
    }
    group = str(document.get("apiVersion", "v1")).rpartition("/")[0]
    kind = BY_KEY.get((group, str(document.get("kind", ""))))
    pod_kinds = [] if kind is None else list(pods_of(document, kind, kind.resource))
    if not pod_kinds:
        raise Refused(f"{path}: holds no workload that asks for GPUs")
    return pod_kinds


def _named(workload: str) -> tuple[str, str]:
    kind, slash, name = workload.partition("/")
    if not slash or not kind or not name or "/" in name:
        raise Refused(f"{workload!r} names no workload; write KIND/NAME (job/finetune), or a manifest's file")
    return kind.lower(), name


def _is_kind(pod_kind: "PodKind", kind: str) -> bool:
    return kind in (
        pod_kind.resource.kind.lower(),
        pod_kind.resource.plural,
        f"{pod_kind.resource.plural}.{pod_kind.resource.group}",
    )


async def ask_all(
    client: "AsyncPredictionClient", pod_kinds: "Sequence[PodKind]", measurements: "Measurements | None"
) -> list[Sized]:
    """A few questions at a time: pods of a thousand workloads are no reason to crowd others out."""
    turns = asyncio.Semaphore(_AT_ONCE)

    async def ask(pod_kind: "PodKind") -> Sized:
        async with turns:
            if measurements is None:
                return await _ask(client, pod_kind)
            use = measurements.use_of(pod_kind)
            result = await _ask(client, _on_gpu(pod_kind, use), use)
            window_s, remarks = measurements.question.since_s, tuple(measurements.remarks(pod_kind))
            return replace(result, measured=use, window_s=window_s, remarks=remarks)

    return list(await asyncio.gather(*(ask(pod_kind) for pod_kind in pod_kinds)))


def _on_gpu(pod_kind: "PodKind", use: "MeasuredUse | None") -> "PodKind":
    """With the GPU as the exporter calls it, where no label of a node says which it is."""
    from kopt.core.gpu_catalogue import UnknownGpuError, find_gpu

    if pod_kind.gpu or use is None:
        return pod_kind
    try:
        return replace(pod_kind, gpu=find_gpu(use.gpu).name)
    except UnknownGpuError:
        return pod_kind


async def _ask(client: "AsyncPredictionClient", pod_kind: "PodKind", use: "MeasuredUse | None" = None) -> Sized:
    from kopt.serving.client.transport import RequestRefused

    question = pod_kind.question
    if question is None:
        return Sized(pod_kind, why=pod_kind.silence or "its pods are made from a template that is not in the object")
    try:
        answer = await client.sizing(question)
    except RequestRefused as error:
        return Sized(pod_kind, why=str(error))
    advice = pod_kind.advice(answer, time.time(), use)
    change = pod_kind.patch(advice)
    return Sized(pod_kind, advice, change, answer, "" if change is not None else _unchanged(pod_kind, advice))


def _unchanged(pod_kind: "PodKind", advice: "SizeAdvice") -> str:
    """Why there is nothing to change."""
    if pod_kind.workload.opts_out:
        return "it opts out"
    if not pod_kind.takes_patches:
        return "it asks for a part of a GPU that is not asked for by memory"
    return advice.why_no_patch or "as advised already"


async def tried(kubeconfig: Path | None, sizeds: Sequence[Sized]) -> list[str]:
    """Each change sent to the API server as a dry run: empty where it is accepted, else what the server says."""

    async with open_cluster(kubeconfig, failed="the cluster cannot be asked") as kube:
        return [await _tried(kube, sized.change) for sized in sizeds if sized.change is not None]


async def _tried(kube: "Kube", change: "Change") -> str:
    from kopt.cluster.client.api import ApiError, Invalid, Patch

    of = change.of
    try:
        await kube.patch(
            of.resource,
            of.workload.name,
            list(map(dict, change.operations)),
            of.workload.namespace,
            kind=Patch.JSON,
            dry_run=True,
        )
    except Invalid as error:
        # The message quotes the whole template.
        short = str(error).partition(" Invalid value:")[0].rstrip(":")
        kind = of.resource.kind
        return short if of.workload.kind.mutable else f"{short}; a {kind} keeps what it has: change what makes the next"
    except ApiError as error:
        return str(error)
    return ""


async def decisions(kubeconfig: Path | None, pod_kind: "PodKind") -> list[tuple[str, str]]:
    """What components of ours have written on the workload and said about it: (where, what), oldest last."""
    from kopt.cluster.client.api import ApiError, connect
    from kopt.cluster.client.resources import EVENTS

    document = pod_kind.workload.document
    places = [("metadata",), *((pod_kind.pods.metadata,) if pod_kind.pods.metadata is not None else ())]
    written = {
        name: str(value)
        for location in places
        for part in ("annotations", "labels")
        for name, value in _at(document, (*location, part)).items()
        if name.startswith("kaiwo.ai/")
    }
    result = sorted(written.items())
    uid = str(_at(document, ("metadata",)).get("uid", ""))
    if not uid:
        return result
    try:
        async with connect(kubeconfig) as kube:
            listing = await kube.list(EVENTS, pod_kind.workload.namespace, field_selector=f"regarding.uid={uid}")
    except ApiError:
        return result
    ours = [event for event in listing.items if str(event.get("reportingController", "")).startswith(_OURS)]
    ours.sort(key=lambda event: str(event.get("eventTime") or ""), reverse=True)
    return result + [(str(event.get("reason", "")), str(event.get("note", ""))) for event in ours]


def _at(document: Any, path: Sequence[str | int]) -> Mapping[str, Any]:
    from kopt.cluster.objects.fields import mapping

    return mapping(document, *path)


def document(item: Sized) -> dict[str, Any]:
    """For programs: also workloads that stay as they are, with the reason."""
    change, advice = item.change, item.advice
    reported = (
        {}
        if advice is None
        else asdict(advice) | {"asked_milli_gpu": advice.requested_milli_gpu, "advised": advice.advised}
    )
    result = reported | {
        "namespace": item.pods.workload.namespace,
        "workload": item.pods.label,
        "pods": item.pods.pods.pods,
        "saved_milli_gpu": item.saved_milli_gpu,
        "patch": None if change is None else list(change.operations),
        "command": None if change is None else change.command,
        "why": item.why,
    }
    return result | measured_document(item)


def measured_document(item: Sized) -> dict[str, Any]:
    """What was measured beside the code's estimate; empty where no measurement was asked for."""
    if not item.window_s:
        return {}
    peak, low, high = item.estimated_bytes
    return {
        "peak_bytes": peak,
        "low_bytes": low,
        "high_bytes": high,
        "measured": measured.document(item.measured, len(item.pods.pod_names), item.window_s),
        "remarks": list(item.remarks),
    }


def patches(sizeds: Sequence[Sized]) -> str:
    """YAML documents of operations, each under a comment with the kubectl line, or why there is none."""
    import yaml

    parts = []
    for item in sizeds:
        name = printable(f"{item.pods.label} in {item.pods.workload.namespace}")
        if item.change is None:
            parts.append(f"# {name}: no patch, {printable(item.why)}\n")
        else:
            body = yaml.safe_dump(plain(item.change.operations), sort_keys=False)
            parts.append(f"# {name}: {printable(item.change.command)}\n{body}")
    return "---\n".join(parts)


def plain(value: Any) -> Any:
    """By way of JSON, so that nothing but plain values is written as YAML, and nothing by reference."""
    return json.loads(json.dumps(value, default=str))
