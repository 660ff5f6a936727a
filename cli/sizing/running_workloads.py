"""Workloads that run in a cluster, with what the prediction endpoint says that they need."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kopt.cli.edge import Refused
from kopt.cli.endpoint import DEADLINE_S, unanswered
from kopt.cli.output import printable
from kopt.cli.scripts import MANIFESTS, read_manifest
from kopt.core.settings import Settings

if TYPE_CHECKING:
    from kopt.cluster.api import Kube
    from kopt.controllers.running import Change, PodKind
    from kopt.serving.client import AsyncPredictionClient
    from kopt.serving.size_advice import SizeAdvice

_AT_ONCE = 8
_OURS = "kaiwo.ai/"

Kubeconfig = Annotated[
    Path | None,
    typer.Option("--kubeconfig", metavar="FILE", help="The cluster; else KUBECONFIG, the pod, ~/.kube."),
]
Namespace = Annotated[str, typer.Option("-n", "--namespace", help="Only this namespace; default: all.")]


@dataclass(frozen=True)
class Sized:
    """One kind of pods of a workload. ``advice`` is None where the endpoint could say nothing, for the reason ``why``;
    ``change`` where there is nothing to change; ``answer`` is the endpoint's document."""

    pods: "PodKind"
    advice: "SizeAdvice | None" = None
    change: "Change | None" = None
    answer: Mapping[str, Any] | None = None
    why: str = ""

    @property
    def saved_milli_gpu(self) -> int | None:
        """Of all its pods together."""
        saved = None if self.advice is None else self.advice.saved_milli_gpu
        return None if saved is None else saved * self.pods.pods.pods


def sized(settings: Settings, workload: str | None, kubeconfig: Path | None, namespace: str) -> list[Sized]:
    """Every GPU workload of the cluster, or those that ``workload`` (KIND/NAME, or a manifest's file) names.

    Raises Refused where the cluster or the endpoint does not answer, and where nothing has that name.
    """
    return asyncio.run(_sized(settings, workload, kubeconfig, namespace))


async def _sized(settings: Settings, workload: str | None, kubeconfig: Path | None, namespace: str) -> list[Sized]:
    from kopt.serving.client import AsyncPredictionClient, EndpointFailure

    found = [one async for one in _chosen(workload, kubeconfig, namespace)]
    try:
        async with AsyncPredictionClient(settings.endpoint, deadline_s=DEADLINE_S) as client:
            return await _ask_all(client, found)
    except EndpointFailure as error:
        raise Refused(unanswered(settings, str(error))) from error


async def _chosen(workload: str | None, kubeconfig: Path | None, namespace: str) -> "AsyncIterator[PodKind]":
    if workload is not None and (path := Path(workload)).suffix in MANIFESTS:
        for one in _in_manifest(path):
            yield one
        return
    from kopt.cluster.api import ApiError, connect
    from kopt.controllers.running import running

    kind, name = ("", "") if workload is None else _named(workload)
    found = False
    try:
        async with connect(kubeconfig) as kube:
            async for one in running(kube, namespace):
                if workload is None or (one.workload.name == name and _is_kind(one, kind)):
                    found = True
                    yield one
    except ApiError as error:
        raise Refused(f"the cluster cannot be read: {error}") from error
    if workload is not None and not found:
        place = f"namespace {namespace}" if namespace else "any namespace"
        raise Refused(f"no {kind} {name} that asks for GPUs runs in {place}; `kopt recommend --running` lists them")


def _in_manifest(path: Path) -> "list[PodKind]":
    from kopt.controllers.running import pods_of
    from kopt.controllers.webhook.kinds import BY_KEY

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
    found = [] if kind is None else list(pods_of(document, kind, kind.resource))
    if not found:
        raise Refused(f"{path}: holds no workload that asks for GPUs")
    return found


def _named(workload: str) -> tuple[str, str]:
    kind, slash, name = workload.partition("/")
    if not slash or not kind or not name or "/" in name:
        raise Refused(f"{workload!r} names no workload; write KIND/NAME (job/finetune), or a manifest's file")
    return kind.lower(), name


def _is_kind(one: "PodKind", kind: str) -> bool:
    return kind in (one.resource.kind.lower(), one.resource.plural, f"{one.resource.plural}.{one.resource.group}")


async def _ask_all(client: "AsyncPredictionClient", found: "Sequence[PodKind]") -> list[Sized]:
    """A few questions at a time: pods of a thousand workloads are no reason to crowd others out."""
    turns = asyncio.Semaphore(_AT_ONCE)

    async def ask(one: "PodKind") -> Sized:
        async with turns:
            return await _ask(client, one)

    return list(await asyncio.gather(*(ask(one) for one in found)))


async def _ask(client: "AsyncPredictionClient", one: "PodKind") -> Sized:
    from kopt.serving.client import RequestRefused

    question = one.question
    if question is None:
        return Sized(one, why="its pods are made from a template that is not in the object")
    try:
        answer = await client.sizing(question)
    except RequestRefused as error:
        return Sized(one, why=str(error))
    advice = one.advice(answer, time.time())
    change = None if answer.get("fallback") else one.patch(advice)
    return Sized(one, advice, change, answer, "" if change is not None else _unchanged(one, advice))


def _unchanged(one: "PodKind", advice: "SizeAdvice") -> str:
    """Why there is nothing to change."""
    if one.workload.opts_out:
        return "it opts out"
    if not advice.known:
        return "its size is not known"
    return "as advised already" if advice.to_gpu == advice.gpu else f"it needs a larger GPU: {advice.to_gpu}"


async def tried(kubeconfig: Path | None, found: Sequence[Sized]) -> list[str]:
    """Each change sent to the API server as a dry run: empty where it is accepted, else what the server says."""
    from kopt.cluster.api import ApiError, connect

    try:
        async with connect(kubeconfig) as kube:
            return [await _tried(kube, one.change) for one in found if one.change is not None]
    except ApiError as error:
        raise Refused(f"the cluster cannot be asked: {error}") from error


async def _tried(kube: "Kube", change: "Change") -> str:
    from kopt.cluster.api import ApiError, Invalid, Patch

    of = change.of
    try:
        await kube.patch(of.resource, of.workload.name, list(map(dict, change.operations)), of.workload.namespace,
                         kind=Patch.JSON, dry_run=True)  # fmt: skip
    except Invalid as error:
        # The message quotes the whole template.
        short = str(error).partition(" Invalid value:")[0].rstrip(":")
        kind = of.resource.kind
        return short if of.workload.kind.mutable else f"{short}; a {kind} keeps what it has: change what makes the next"
    except ApiError as error:
        return str(error)
    return ""


async def decisions(kubeconfig: Path | None, one: "PodKind") -> list[tuple[str, str]]:
    """What components of ours have written on the workload and said about it: (where, what), oldest last."""
    from kopt.cluster.api import ApiError, connect
    from kopt.cluster.resources import EVENTS

    document = one.workload.document
    places = [("metadata",), *((one.pods.metadata,) if one.pods.metadata is not None else ())]
    written = {
        name: str(value) for place in places for part in ("annotations", "labels")
        for name, value in _at(document, (*place, part)).items() if name.startswith("kaiwo.ai/")
    }  # fmt: skip
    found = sorted(written.items())
    uid = str(_at(document, ("metadata",)).get("uid", ""))
    if not uid:
        return found
    try:
        async with connect(kubeconfig) as kube:
            listing = await kube.list(EVENTS, one.workload.namespace, field_selector=f"regarding.uid={uid}")
    except ApiError:
        return found
    ours = [event for event in listing.items if str(event.get("reportingController", "")).startswith(_OURS)]
    ours.sort(key=lambda event: str(event.get("eventTime") or ""), reverse=True)
    return found + [(str(event.get("reason", "")), str(event.get("note", ""))) for event in ours]


def _at(document: Any, path: Sequence[str | int]) -> Mapping[str, Any]:
    from kopt.controllers.webhook.objects import mapping

    return mapping(document, *path)


def document(one: Sized) -> dict[str, Any]:
    """For programs: also workloads that stay as they are, with the reason."""
    change, advice = one.change, one.advice
    told = {} if advice is None else asdict(advice) | {"asked_milli_gpu": advice.asked_milli_gpu,
                                                       "advised": advice.advised}  # fmt: skip
    return told | {
        "namespace": one.pods.workload.namespace, "workload": one.pods.label, "pods": one.pods.pods.pods,
        "saved_milli_gpu": one.saved_milli_gpu, "patch": None if change is None else list(change.operations),
        "command": None if change is None else change.command, "why": one.why,
    }  # fmt: skip


def patches(found: Sequence[Sized]) -> str:
    """YAML documents of operations, each under a comment with the kubectl line, or why there is none."""
    import yaml

    parts = []
    for one in found:
        name = printable(f"{one.pods.label} in {one.pods.workload.namespace}")
        if one.change is None:
            parts.append(f"# {name}: no patch, {printable(one.why)}\n")
        else:
            body = yaml.safe_dump(plain(one.change.operations), sort_keys=False)
            parts.append(f"# {name}: {printable(one.change.command)}\n{body}")
    return "---\n".join(parts)


def plain(value: Any) -> Any:
    """By way of JSON, so that nothing but plain values is written as YAML, and nothing by reference."""
    return json.loads(json.dumps(value, default=str))
