"""GPU workloads of a cluster as sizing sees them: what each kind of pod asks for, where it runs, and the patch that
makes it ask for what it needs."""

import contextlib
import copy
import json
from collections import defaultdict
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from kopt.cluster.client.api import Forbidden, Kube, NotFound
from kopt.cluster.client.resources import JOBS, NODES, PODS, REPLICA_SETS, Object, Resource
from kopt.cluster.objects.fields import at, items, mapping, text
from kopt.cluster.objects.json_patch import JsonPatch
from kopt.cluster.workloads.kinds import TRAIN_JOBS, PodSet, WorkloadKind
from kopt.cluster.workloads.memory_need import parse_need
from kopt.cluster.workloads.node_selection import GPU_PRODUCT_LABELS
from kopt.cluster.workloads.pod_sizing import (
    gpu_container,
    question_of,
    requested_gpus,
    role_of,
    silence,
    takes_patches,
    write_request,
)
from kopt.cluster.workloads.requests.external import Find, ObjectRef, complete, read_object
from kopt.cluster.workloads.served import alive, is_evaluated, metadata_and_spec, served_kinds
from kopt.cluster.workloads.shares.executors import executor_for, executor_in
from kopt.cluster.workloads.workload import Workload
from kopt.controllers.overview.measured_advice import advice_of_measured
from kopt.core.gpu_catalogue import UnknownGpuError, find_gpu
from kopt.core.times import seconds_or_none
from kopt.core.workload.executor import Executor
from kopt.core.workload.measured import MeasuredUse
from kopt.policies.sizing.advice import advise
from kopt.serving.contract.reading import read_answer
from kopt.serving.contract.size_advice import SizeAdvice
from kopt.serving.contract.sizing_answers import AskedOut, SizingResponse, size_advice

_BETWEEN = (REPLICA_SETS, JOBS)
"""Kinds that stand between a workload and its pods."""


@dataclass(frozen=True)
class PodKind:
    """Pods of a workload that are made from one template. ``gpu`` is the product they run on, empty where none runs;
    ``pod_names`` are all pods of the workload that are on nodes, of whichever template, ``started_s`` since when, in
    Unix seconds. ``in_cluster``: what hands out shares of a GPU there."""

    resource: Resource
    workload: Workload
    pods: PodSet
    gpu: str = ""
    pod_names: tuple[str, ...] = ()
    in_cluster: Executor = Executor.UNKNOWN
    started_s: Mapping[str, float] = field(default_factory=dict)

    @property
    def executor(self) -> Executor:
        """What hands shares to these pods."""
        return executor_for(self.in_cluster, self.workload.document, self.workload, self.pods)

    @property
    def label(self) -> str:
        """``job/finetune``, as on the command line; with the role where a workload has several."""
        role = ""
        if len(self.workload.pod_sets) > 1:
            role = f"/{role_of(self.workload, self.pods)}"
        return f"{self.resource.kind.lower()}/{self.workload.name}{role}"

    @property
    def question(self) -> dict[str, Any] | None:
        """The body for ``/v1/sizing``; None where what the pods run is not known (``silence`` may say why)."""
        question = question_of(self.workload, self.pods)
        name = self.workload.name[:253]
        hint = {} if self.executor is Executor.UNKNOWN else {"executor": self.executor.value}
        return None if question is None else {**question, "gpu": self.gpu or None, "name": name, **hint}

    @property
    def silence(self) -> str:
        """Why nothing can be advised, whatever is known of sizes; empty where it can."""
        why = silence(self.workload, self.pods)
        return "" if why is None else why.message

    def advice(self, answer: Mapping[str, Any], now_s: float, measured: MeasuredUse | None = None) -> SizeAdvice:
        """What the endpoint's answer, and what its pods used, mean for one of these pods, by its own request.

        Raises AnswerError.
        """
        estimate = read_answer(SizingResponse, "/v1/sizing", answer)
        requested, need = requested_gpus(self.workload, self.pods), parse_need(answer)
        container = gpu_container(self.workload, self.pods)
        image = text(container[1], "image") if container else ""
        request = AskedOut(**requested.to_dict())
        result = size_advice(self.workload.name, image, request, now_s, estimate)
        if measured is not None:
            return advice_of_measured(result, need, measured, len(self.pod_names))
        if need is None:
            return result
        return result.with_recommendation(
            advise(
                need.prediction,
                requested,
                need.gpu,
                need.processes,
                activity_high=need.activity_high,
                observed_peak_bytes=need.observed_peak_bytes,
                executor=self.executor,
            )
        )

    @property
    def takes_patches(self) -> bool:
        """Whether these pods can be made to ask for something else."""
        return takes_patches(self.workload, self.pods)

    def patch(self, advice: SizeAdvice) -> "Change | None":
        """The change of the object by the advice; None where nothing is known, opted out, or as advised already."""
        wanted = advice.patch()
        if wanted is None or self.workload.opts_out or not self.takes_patches:
            return None
        before = metadata_and_spec(self.workload.document)
        patch = JsonPatch(copy.deepcopy(before))
        write_request(patch, self.workload, self.pods, wanted)
        return Change(self, tuple(patch.operations), before, patch.document) if patch.operations else None


@dataclass(frozen=True)
class Change:
    """What would be changed of an object: as operations (RFC 6902), and its metadata and spec before and after."""

    of: PodKind
    operations: tuple[Mapping[str, Any], ...]
    before: Object
    after: Object

    @property
    def command(self) -> str:
        """The kubectl line that applies it."""
        resource, workload = self.of.resource, self.of.workload
        kind = f"{resource.plural}.{resource.group}".rstrip(".")
        patch = json.dumps(list(self.operations), separators=(",", ":")).replace("'", "'\\''")
        return f"kubectl -n {workload.namespace} patch {kind} {workload.name} --type json -p '{patch}'"


async def running(kube: Kube, namespace: str = "") -> AsyncIterator[PodKind]:
    """The kinds of GPU pods of every workload that has not ended, with their pods and the GPU that they run on.

    Kinds that are not served, or that may not be read, are left out.
    """
    homes, executor = await _homes(kube, namespace), await executor_in(kube)
    runtimes: dict[ObjectRef, Object | None] = {}
    for kind, resource in await served_kinds(kube):
        try:
            async for page in kube.pages(resource, namespace):
                for document in page.items:
                    home = homes.get(text(document, "metadata", "uid"), _Home())
                    others = await _others(kube, document, kind, runtimes)
                    for pod_kind in pods_of(document, kind, resource, others.get):
                        yield replace(
                            pod_kind,
                            gpu=home.gpu,
                            pod_names=tuple(sorted(home.pods)),
                            in_cluster=executor,
                            started_s={name: at_s for name, at_s in home.pods.items() if at_s is not None},
                        )
        except (NotFound, Forbidden):
            continue


def pods_of(document: Object, kind: WorkloadKind, resource: Resource, find: Find = lambda _: None) -> Iterator[PodKind]:
    """The kinds of GPU pods of one object; none where it has ended or another workload has made it.

    ``find`` gives the runtime of a TrainJob, which has the template of its pods.
    """
    workload = alive(document, kind)
    if workload is not None and kind.resource == TRAIN_JOBS:
        workload = complete(workload, find)[0]
    if workload is not None and is_evaluated(workload):
        yield from (PodKind(resource, workload, pod_set) for pod_set in workload.pod_sets if pod_set.gpus)


async def _others(
    kube: Kube, document: Object, kind: WorkloadKind, runtimes: dict[ObjectRef, Object | None]
) -> dict[ObjectRef, Object | None]:
    """``runtimes`` with the runtime of a TrainJob, read once for all that use it."""
    workload = alive(document, kind) if kind.resource == TRAIN_JOBS else None
    if workload is not None:
        for reference in complete(workload, runtimes.get)[1] - runtimes.keys():
            runtimes[reference] = await read_object(kube, reference)
    return runtimes


@dataclass
class _Home:
    """Where the pods of a workload run: their names with when they started, and the products of their GPUs."""

    pods: dict[str, float | None] = field(default_factory=dict)
    products: set[str] = field(default_factory=set)

    @property
    def gpu(self) -> str:
        """Empty where there are several."""
        return next(iter(self.products)) if len(self.products) == 1 else ""


async def _homes(kube: Kube, namespace: str) -> dict[str, _Home]:
    """By the uid of an object: where its pods run, or those of its ReplicaSets and Jobs."""
    result: defaultdict[str, _Home] = defaultdict(_Home)
    try:
        products = {name: product async for name, product in _products(kube)}
        owners = {
            text(item, "metadata", "uid"): _owner(item)
            for resource in _BETWEEN
            async for item in _objects(kube, resource, namespace)
        }
        async for pod in _objects(kube, PODS, namespace):
            node, owner = text(pod, "spec", "nodeName"), _owner(pod)
            if not node or text(pod, "status", "phase") in ("Succeeded", "Failed"):
                continue
            for holder in {text(pod, "metadata", "uid"), owner, owners.get(owner, "")} - {""}:
                result[holder].pods[text(pod, "metadata", "name")] = seconds_or_none(text(pod, "status", "startTime"))
                result[holder].products |= {products[node]} if node in products else set()
    except Forbidden:
        return {}
    return result


async def _products(kube: Kube) -> AsyncIterator[tuple[str, str]]:
    async for page in kube.pages(NODES):
        for node in page.items:
            labels = mapping(node, "metadata", "labels")
            product = next((text(labels, name) for name in GPU_PRODUCT_LABELS if text(labels, name)), "")
            with contextlib.suppress(UnknownGpuError):
                product = find_gpu(product).name
                yield text(node, "metadata", "name"), product


async def _objects(kube: Kube, resource: Resource, namespace: str) -> AsyncIterator[Object]:
    async for page in kube.pages(resource, namespace):
        for item in page.items:
            yield item


def _owner(item: Object) -> str:
    """The uid of the object that controls another; empty without one."""
    owners = (owner for _, owner in items(item, "metadata", "ownerReferences") if at(owner, "controller"))
    return text(next(owners, {}), "uid")
