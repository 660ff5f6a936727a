"""K3 at creation: each set of pods is advised by its own container, and in enforce asks for what is advised.

A whole GPU becomes a share where something in the cluster hands that to the pod, in the terms of what does so; fewer
whole GPUs than are asked for are set where the command says how many processes there are.
"""

import asyncio
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from kopt.cluster.objects.fields import Path, at, mapping, text
from kopt.cluster.objects.json_patch import JsonPatch
from kopt.cluster.workloads.kinds import PodSet
from kopt.cluster.workloads.memory_need import Need
from kopt.cluster.workloads.pod_sizing import (
    annotations_path,
    job_type_of,
    requested_gpus,
    silence,
    takes_patches,
    template_of,
    write_request,
    write_resources,
)
from kopt.cluster.workloads.shares.executors import executor_for
from kopt.cluster.workloads.workload import Workload
from kopt.controllers.admission.mutating import Record
from kopt.controllers.admission.policy import ConformancePolicy
from kopt.controllers.admission.sizes.cache import SizingCache
from kopt.core.decision import Mode
from kopt.core.reason import Reason
from kopt.core.units import MIB
from kopt.core.workload.executor import Executor
from kopt.core.workload.sizing import Recommendation, RequestedGpus, ShareKind
from kopt.policies.sizing.advice import (
    MEMORY_ANNOTATION,
    NO_EXECUTOR,
    NOT_FOLLOWED,
    NOT_OBSERVED,
    CertaintySettings,
    advise,
    evidence_of,
    pod_patch,
)

REQUESTED_GPUS = "kaiwo.ai/requested-gpus"
"""On a template that was given fewer GPUs: how many it asked for."""

USEFUL_GPUS, USEFUL_GPUS_REASON = "kaiwo.ai/useful-gpus", "kaiwo.ai/useful-gpus-reason"


@dataclass(frozen=True)
class _Advised:
    """One set of pods, its own request, and what it is advised to ask for; ``gpus`` are those that it asks for now."""

    pods: PodSet
    gpus: int
    requested: RequestedGpus
    need: Need | None
    advice: Recommendation

    @property
    def is_handed_out(self) -> bool:
        """Whether the pods get the share that they are advised."""
        return self.advice.kind is ShareKind.FRACTION and self.advice.executor.hands_out

    @property
    def fewer_gpus(self) -> bool:
        return self.advice.kind is ShareKind.WHOLE and self.advice.count < (self.requested.gpus or 0)


async def apply_sizing(
    patch: JsonPatch,
    workload: Workload,
    mode: Mode,
    policy: ConformancePolicy,
    sizes: SizingCache,
    measured: Need | None = None,
    *,
    dry_run: bool,
    executor: Executor = Executor.UNKNOWN,
) -> list[Record]:
    """The recommendation as annotations, within the budget; in enforce also what the pods ask for.

    ``measured`` is the result of a dry run, for when there is no endpoint or no answer; ``executor`` hands out shares.
    """
    if not sizes.has_source and measured is None:
        return []
    budget_s = 0.0 if dry_run else policy.sizing_budget_s
    executors = [executor_for(executor, patch.document, workload, pods) for pods in workload.pod_sets]
    advised = [
        _advised(workload, pods, need or measured, policy.certainty, executor)
        for pods, need, executor in await _needs(workload, executors, sizes, budget_s, dry_run=dry_run)
    ]
    advised += [
        _advised(workload, pods, None, policy.certainty, Executor.NONE)
        for pods in workload.pod_sets
        if pods.gpus and silence(workload, pods) is not None
    ]
    if not advised:
        return []
    # The annotations of the object are of the pods that need most.
    most = max(advised, key=lambda item: item.advice.bytes)
    reasons = tuple(_reasons(most, advised))
    if most.need is not None and most.advice.kind is not ShareKind.NONE and mode is not Mode.OBSERVE:
        _annotate(patch, most, most.need, " ".join(reason.message for reason in reasons))
        if mode is Mode.ENFORCE:
            _write(patch, workload, advised, most)
    record = Record("sizing", reasons[0].code, mode, " ".join(reason.message for reason in reasons))
    return [record, *_useful_gpus(patch, [item.need for item in advised if item.need is not None], mode)]


def _useful_gpus(patch: JsonPatch, needs: list[Need], mode: Mode) -> Iterator[Record]:
    """How many of its GPUs a training uses well, of the pods that have most. Nobody's request is changed by it."""
    counts = [need.useful for need in needs if need.useful is not None]
    if not counts:
        return
    useful = max(counts, key=lambda each: each.requested)
    if mode is not Mode.OBSERVE:
        patch.put(("metadata", "annotations", USEFUL_GPUS), str(useful.advised))
        patch.put(("metadata", "annotations", USEFUL_GPUS_REASON), useful.reason.message)
    yield Record.of("useful-gpus", useful.reason, mode)


async def _needs(
    workload: Workload, executors: list[Executor], sizes: SizingCache, budget_s: float, *, dry_run: bool
) -> list[tuple[PodSet, Need | None, Executor]]:
    """What is known of each set of pods with GPUs, asked for side by side, and what hands shares to them."""
    job_types = [
        (pods, job_type_of(workload, pods, executor), template_of(workload, pods))
        for pods, executor in zip(workload.pod_sets, executors, strict=True)
    ]
    askable = [
        (pods, job_type, template) for pods, job_type, template in job_types if job_type is not None and template
    ]
    if dry_run:
        # A dry run starts nothing, not even a question to the endpoint.
        return [(pods, sizes.cached(job_type), job_type.executor) for pods, job_type, _ in askable]
    needs = await asyncio.gather(*(sizes.need(job_type, template, budget_s) for _, job_type, template in askable))
    return [(pods, need, job_type.executor) for (pods, job_type, _), need in zip(askable, needs, strict=True)]


def _advised(
    workload: Workload, pods: PodSet, need: Need | None, certainty: CertaintySettings, executor: Executor
) -> _Advised:
    now = requested_gpus(workload, pods)
    # Reviews come twice where another webhook has changed the object after ours.
    path = annotations_path(workload, pods)
    written = text(workload.document, *path, "annotations", REQUESTED_GPUS) if path is not None else ""
    before = int(written) if written.isascii() and written.isdigit() and len(written) < 5 else 0
    requested = replace(now, gpus=before) if now.gpus and before > now.gpus else now
    advice = advise(
        need.prediction if need else None,
        requested,
        need.gpu if need else "",
        need.processes if need else None,
        observed_peak_bytes=need.observed_peak_bytes if need else NOT_OBSERVED,
        certainty=certainty,
        shares=executor is not Executor.UNKNOWN,
        executor=executor,
        silent=silence(workload, pods),
    )
    return _Advised(pods, now.gpus or 0, requested, need, advice)


def _reasons(most: _Advised, advised: list[_Advised]) -> Iterator[Reason]:
    """Why the pods that need most are advised what they are, and why any get fewer GPUs, a share, or none."""
    if most.need is None or most.advice.kind is ShareKind.NONE:
        yield most.advice.reason
        return
    yield evidence_of(most.need.prediction, most.requested, most.need.observed_peak_bytes)
    explained = [
        item
        for item in advised
        if item.fewer_gpus or item.is_handed_out or item.advice.reason.code in (NO_EXECUTOR, *NOT_FOLLOWED)
    ]
    yield from {item.advice.reason.message: item.advice.reason for item in explained}.values()


def _annotate(patch: JsonPatch, most: _Advised, need: Need, why: str) -> None:
    model = need.prediction.model
    annotations = {
        "memory": str(most.advice.bytes // MIB),
        "reason": why,
        "model": f"{model.name}:{model.version}",
        "confidence": f"{need.prediction.confidence:.2f}",
    }
    for name, value in annotations.items():
        patch.put(("metadata", "annotations", f"kaiwo.ai/recommended-{name}"), value)


def _write(patch: JsonPatch, workload: Workload, advised: list[_Advised], most: _Advised) -> None:
    """Make each template ask for what it is advised; memory where our own annotation asks for it already."""
    own: Path = ("metadata", "annotations", MEMORY_ANNOTATION)
    paths = {own: most} | {
        (*item.pods.metadata, "annotations", MEMORY_ANNOTATION): item for item in advised if item.pods.metadata
    }
    for path, item in paths.items():
        memory = mapping(_patch_of(item), "metadata", "annotations").get(MEMORY_ANNOTATION)
        if memory is not None and at(workload.document, *path) is not None:
            patch.put(path, memory)
    for item in advised:
        if item.is_handed_out:
            _share(patch, workload, item)
            continue
        limits = mapping(_patch_of(item), "resources", "limits")
        gives_back = item.fewer_gpus and item.advice.count < item.gpus and takes_patches(workload, item.pods)
        metadata = annotations_path(workload, item.pods)
        if gives_back and limits and metadata is not None:
            patch.put((*metadata, "annotations", REQUESTED_GPUS), str(item.requested.gpus))
            write_resources(patch, workload, item.pods, limits)


def _share(patch: JsonPatch, workload: Workload, item: _Advised) -> None:
    """The share in the terms of what hands it out; no change where the pod has as much already."""
    if not takes_patches(workload, item.pods) or item.pods.metadata is None:
        return
    if item.requested.gpus and not item.requested.is_share:
        patch.put((*item.pods.metadata, "annotations", REQUESTED_GPUS), str(item.requested.gpus))
    write_request(patch, workload, item.pods, _patch_of(item))


def _patch_of(item: _Advised) -> Mapping[str, Any]:
    return pod_patch(item.advice, item.requested, item.need.gpu if item.need else "") or {}
