"""The elastic jobs that run, and which width each should have."""

import math
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from kopt.core.reason import Reason
from kopt.core.workload.rightsizing import Batch
from kopt.policies.rightsizing.scaling import speeds_along
from kopt.policies.rightsizing.width import (
    Elastic,
    Rest,
    Room,
    WidthProposal,
    no_room,
    own_speeds,
    propose_width,
    speed,
)

if TYPE_CHECKING:
    from kopt.cluster.client.api import Kube
    from kopt.cluster.client.resources import Object
    from kopt.cluster.workloads.resizing.elastic import ElasticJob
    from kopt.controllers.overview.diagnosis.books import ClusterBooks
    from kopt.controllers.overview.running_workloads import PodKind
    from kopt.controllers.rightsizing.candidates import RunningWorkload

_CURVE_S = 5.0
_LONGEST_STEP_S = 1e7
Curve = Mapping[int, float]
"""Tokens a second by number of GPUs."""


@dataclass(frozen=True)
class WidthCandidate:
    """``job`` is None for a workload that is not elastic. ``result`` is the change, or why there is none."""

    workload: "RunningWorkload"
    pods: "Sequence[Object]"
    job: "ElasticJob | None"
    result: WidthProposal | Reason
    batch: Batch | None = None
    """What the user says of it."""

    @property
    def proposal(self) -> WidthProposal | None:
        return self.result if isinstance(self.result, WidthProposal) else None


async def read_widths(
    kube: "Kube",
    now_s: float,
    namespace: str = "",
    workload: str = "",
    *,
    batch: Batch | None = None,
    target: int | None = None,
) -> list[WidthCandidate]:
    """Of every workload with GPUs that runs, or of the one that is named as KIND/NAME; ``batch`` is what the user says
    of it. Raises ApiError."""
    from kopt.cli.rightsize.reading import running_pods, workload_of
    from kopt.cluster.workloads.resizing.elastic import BoundsError, NotElasticError, elastic_of
    from kopt.controllers.overview.running_workloads import running

    pods = await running_pods(kube, namespace)
    elastic: list[tuple[PodKind, RunningWorkload, list[Object], ElasticJob]] = []
    result: list[WidthCandidate] = []
    async for pod_kind in running(kube, namespace):
        of_it = [pods[key] for name in pod_kind.pod_names if (key := (pod_kind.workload.namespace, name)) in pods]
        if not of_it or (workload and pod_kind.label.lower() != workload.lower()):
            continue
        own = workload_of(pod_kind)
        try:
            job = elastic_of(pod_kind.resource, pod_kind.workload)
        except NotElasticError as error:
            result.append(WidthCandidate(own, of_it, None, Reason("NOT_ELASTIC", str(error))))
        except BoundsError as error:
            result.append(WidthCandidate(own, of_it, None, Reason("BOUNDS_UNREADABLE", str(error))))
        else:
            elastic.append((pod_kind, own, of_it, replace(job, batch=batch or job.batch)))
    if elastic:
        surroundings = await _surroundings(kube, now_s)
        for pod_kind, own, of_it, job in elastic:
            proposed: WidthProposal | Reason
            try:
                proposed = await _proposed(kube, pod_kind, own, of_it, job, surroundings, now_s, target)
            except (ArithmeticError, LookupError, TypeError, ValueError) as error:
                # One job's objects, which anybody may have written, do not end the plan of all.
                text = f"What its objects say cannot be worked with ({type(error).__name__}: {error})."
                proposed = Reason("WIDTH_NOT_COMPUTED", text)
            result.append(WidthCandidate(own, of_it, job, proposed, batch))
    return result


async def against(kube: "Kube", candidate: WidthCandidate) -> str:
    """What by now is against a change that was planned, of all that is looked at for a plan; empty for nothing. Raises
    ApiError."""
    proposal, workload = candidate.proposal, candidate.workload
    assert proposal is not None
    assert candidate.job is not None
    change, uid = proposal.change, candidate.job.uid
    label, batch = workload.label, candidate.batch
    present = await read_widths(kube, time.time(), workload.namespace, label, batch=batch, target=change.after)
    now = next((each.result for each in present if each.workload.reference.get("uid") == uid), None)
    if now is None:
        return "none of its pods runs"
    if isinstance(now, Reason):
        return now.message
    if now.change != change:
        return f"it would be {now.change.text} by now"
    gone = proposal.for_others and not now.for_others
    return "no workload is pending any more that could run on its last worker's GPUs" if gone else ""


async def against_wider(kube: "Kube", pods: "Sequence[Object]", job: "ElasticJob") -> Reason | None:
    """Why a job that has these pods may have no further worker. Raises ApiError."""
    room = await _room(kube, pods, job, await _surroundings(kube, time.time()))
    return no_room(job.gpus, room)


@dataclass(frozen=True)
class _Surroundings:
    books: "ClusterBooks"
    pending: "Sequence[tuple[str, str]]"
    """(uid of the owner, name) of workloads that are pending."""


async def _surroundings(kube: "Kube", now_s: float) -> _Surroundings:
    from kopt.controllers.overview.diagnosis.books import ClusterBooks
    from kopt.controllers.overview.diagnosis.reading import read_cluster
    from kopt.controllers.overview.reading import Reader
    from kopt.core.scheduling.queued import State

    reader = Reader(kube)
    documents = await read_cluster(reader, "", claims=False)
    queued = (await reader.lines()).everything(documents.pods, now_s)
    pending = [(each.owner_uid or each.uid, each.full_name) for each in queued if each.state is State.PENDING]
    return _Surroundings(ClusterBooks(documents), pending)


async def _proposed(
    kube: "Kube",
    pod_kind: "PodKind",
    workload: "RunningWorkload",
    pods: "Sequence[Object]",
    job: "ElasticJob",
    surroundings: _Surroundings,
    now_s: float,
    target: int | None,
) -> WidthProposal | Reason:
    from kopt.cluster.objects.annotations import AnnotationError
    from kopt.cluster.objects.resize_history import changes_of, widths_of
    from kopt.policies.rightsizing.cool_down import cooling_down

    if workload.obstacle is not None:
        return workload.obstacle
    try:
        own = widths_of(pod_kind.workload.document)
        history = [*own, *(record for pod in pods for record in changes_of(pod))]
    except AnnotationError as error:
        return Reason("HISTORY_UNREADABLE", str(error))
    if resting := cooling_down(history, "width", now_s):
        return resting
    if len(pods) != job.width:
        return Reason("WORKERS_ABSENT", f"{len(pods)} of its {job.width} workers run: what it has is not settled.")
    if (stopped := await _stopped_by_kueue(kube, job, pod_kind.workload.annotations)) is not None:
        return stopped
    rest = rest_of(pods, now_s)
    speeds: Mapping[int, float] = {}
    if job.batch is not None:
        speeds = own_speeds(own, job.batch)
        if rest.step_seconds:
            now = speed(job.width, rest.step_seconds, job.batch)
            factor = now / speeds[job.width] if job.width in speeds else 1.0
            speeds = {width: scaled for width, value in speeds.items() if 0 < (scaled := value * factor) < math.inf}
            speeds = {**speeds, job.width: now}
            # What somebody asks for is tried, whatever is predicted of it.
            curve = await _curve(pod_kind, job, speeds) if target is None else {}
            speeds = speeds_along(curve, job.gpus, speeds, range(max(1, job.width - 1), job.width + 2))
    room = await _room(kube, pods, job, surroundings)
    elastic = Elastic(job.width, job.least, job.most, job.gpus, job.batch)
    return propose_width(elastic, speeds, room, rest, target=target)


async def _stopped_by_kueue(kube: "Kube", job: "ElasticJob", annotations: Mapping[str, Any]) -> Reason | None:
    """Why Kueue would stop the job, which manages it by its label, or without one (``manageJobsWithoutQueueName``)."""
    from kopt.cluster.client.api import Forbidden, NotFound
    from kopt.cluster.client.resources import KUEUE_WORKLOADS
    from kopt.cluster.workloads.resizing.elastic import NotElasticError, admits_slices, of_job, require_slices

    try:
        workloads = of_job(job, (await kube.list(KUEUE_WORKLOADS, job.namespace)).items)
    except NotFound:
        workloads = []
    except Forbidden:
        text = "Nothing tells whether Kueue would stop it: you may not list its Workloads (workloads.kueue.x-k8s.io)."
        return Reason("NOT_ELASTIC", text)
    if not (job.in_kueue or workloads):
        return None
    try:
        require_slices(job, annotations)
    except NotElasticError as error:
        return Reason("NOT_ELASTIC", str(error))
    if admits_slices(job, workloads):
        return None
    return Reason("NOT_ELASTIC", "Kueue would stop it: its gate ElasticJobsViaWorkloadSlices is off.")


def rest_of(pods: "Sequence[Object]", now_s: float) -> Rest:
    """What is left of a job, by what the log agent writes on its pods."""
    from kopt.cluster.checkpoints.safe_moment import status_of
    from kopt.cluster.objects.progress import progress_of

    progress, status = progress_of(pods), status_of(pods, now_s)
    risk = None if status is None else status.work_at_risk_gpu_seconds
    step_seconds = None if progress is None or not progress.step_seconds else statistics.median(progress.step_seconds)
    return Rest(
        None if progress is None else max(0, progress.steps - progress.step),
        step_seconds if step_seconds is not None and 0 < step_seconds < _LONGEST_STEP_S else None,
        None if risk is None else risk.high,
    )


async def _room(kube: "Kube", pods: "Sequence[Object]", job: "ElasticJob", surroundings: _Surroundings) -> Room:
    """Free GPUs of its workers' kind on nodes where they may run, what quotas of its namespace leave, and which pending
    workloads its last worker keeps from running."""
    from kopt.cluster.client.api import Forbidden, NotFound
    from kopt.cluster.client.resources import RESOURCE_QUOTAS
    from kopt.cluster.objects.fields import mapping
    from kopt.cluster.workloads.requests.pods import ask_of, quantity_or_zero
    from kopt.cluster.workloads.resizing.elastic import worker_index
    from kopt.controllers.overview.replicas import NoGpusError, room_of
    from kopt.core.scheduling.placement import ANY_POOL

    others = sum(uid != job.uid for uid, _ in surroundings.pending)
    last = max(pods, key=worker_index)
    resource = ask_of(last).pool
    if resource in ("", ANY_POOL):
        return Room(0, others)
    try:
        nodes = room_of(surroundings.books, resource, {}).nodes
    except NoGpusError:
        return Room(0, others)
    documents = {each["metadata"]["name"]: each for each in surroundings.books.documents.nodes}
    free = {each.name: each.free for each in nodes if each.name in documents}
    workers = sum(count // job.gpus for name, count in free.items() if _may_run(last, documents[name]))
    helped = 0
    if (freed := documents.get(last["spec"].get("nodeName", ""))) is not None:
        helped = _helped(surroundings.books, resource, job, freed, free)
    try:
        quotas = (await kube.list(RESOURCE_QUOTAS, job.namespace)).items
    except (Forbidden, NotFound):
        quotas = []
    for quota in quotas:
        for name, hard in mapping(quota, "status", "hard").items():
            needs = {f"requests.{resource}": job.gpus, "pods": 1, "count/pods": 1}.get(name)
            if needs:
                left = quantity_or_zero(hard) - quantity_or_zero(mapping(quota, "status", "used").get(name))
                workers = min(workers, max(0, left) // needs)
    return Room(workers, others, helped)


def _helped(books: "ClusterBooks", resource: str, job: "ElasticJob", freed: "Object", free: Mapping[str, int]) -> int:
    """Workloads whose pending pods could run together on the GPUs of one worker on its node, and have room on no other.
    ``free``: whole GPUs of ``resource`` by node."""
    from kopt.cluster.workloads.requests.pods import ask_of
    from kopt.controllers.overview.diagnosis.starts import unplaced_groups

    documents = {each["metadata"]["name"]: each for each in books.documents.nodes}
    result = 0
    for _, pods in unplaced_groups(books):
        try:
            requests = [ask_of(pod) for pod in pods]
        except ValueError:
            continue
        needs = [ask.units.get(resource, 0) for ask in requests]
        fits = all(needs) and sum(needs) <= job.gpus and all(_may_run(pod, freed) for pod in pods)
        has_room = all(
            any(count >= need and _may_run(pod, documents[name]) for name, count in free.items())
            for pod, need in zip(pods, needs, strict=True)
        )
        result += fits and not has_room
    return result


def _may_run(pod: "Object", node: "Object") -> bool:
    from kopt.cluster.objects.fields import items, mapping
    from kopt.cluster.workloads.node_selection import runs_on

    taints = [taint for _, taint in items(node, "spec", "taints")]
    return runs_on(pod["spec"], mapping(node, "metadata", "labels"), taints)


async def _curve(pod_kind: "PodKind", job: "ElasticJob", speeds: Mapping[int, float]) -> Curve:
    """The endpoint's scaling curve, corrected by the job's own runs; empty where it knows none, or does not answer."""
    from kopt.serving.base.environment import load_settings
    from kopt.serving.client.client import AsyncPredictionClient
    from kopt.serving.client.transport import EndpointFailure, RequestRefused

    question = pod_kind.question
    if question is None:
        return {}
    per_batch = job.width if job.batch is Batch.PER_WORKER else 1
    # As steps of the batch that it has now: what a curve compares.
    measured = {str(width * job.gpus): per_batch / each for width, each in speeds.items()}
    try:
        async with AsyncPredictionClient(load_settings().endpoint, deadline_s=_CURVE_S) as client:
            answer = await client.sizing({**question, "scaling": True, "measured_steps": measured})
    except (EndpointFailure, RequestRefused):
        return {}
    points = (answer.get("gpu_count") or {}).get("points") or ()
    return {int(point["gpus"]): float(point["tokens_per_second"]) for point in points}
