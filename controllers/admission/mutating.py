"""The mutating half: writes queue, scheduler and trace context into objects as they are created."""

from dataclasses import dataclass

from kopt.cluster.admission.review import Review
from kopt.cluster.client.resources import PODS
from kopt.cluster.objects.annotations import RECOMMENDED_POOLS_ANNOTATION, SCHEDULER_ANNOTATION
from kopt.cluster.objects.fields import controller_of, mapping, text
from kopt.cluster.objects.json_patch import JsonPatch
from kopt.cluster.runtime.tracing import (
    JOB_TRACEPARENT_ANNOTATION,
    TRACEPARENT_ANNOTATION,
    TraceContext,
    is_sampled,
    job_context_of,
    new_context,
    parse_traceparent,
)
from kopt.cluster.workloads.frameworks import QUEUE_SOURCE, write_gang, write_queue
from kopt.cluster.workloads.kinds import BY_KEY, KAIWO_JOBS, RAY_CLUSTERS, TRAIN_JOBS
from kopt.cluster.workloads.node_pools import write_kai_pool, write_pools
from kopt.cluster.workloads.tracked_pod import gang_name
from kopt.cluster.workloads.workload import OPT_OUT_ANNOTATION, Workload
from kopt.cluster.workloads.workload_class import CLASS_KEY, stated_class
from kopt.controllers.admission.evaluation import Evaluation
from kopt.controllers.admission.policy import ConformancePolicy
from kopt.core.decision import Mode
from kopt.core.reason import Reason
from kopt.core.scheduling.queue_tree import KaiwoPool
from kopt.core.scheduling.submission import Framework
from kopt.policies.admission.pools import preference_weights
from kopt.policies.admission.queue import Source
from kopt.policies.admission.scheduler import Placement

_WITHOUT_TEMPLATES = {(kind.group, kind.kind) for kind in (TRAIN_JOBS, KAIWO_JOBS)}
"""Kinds that have no templates, or not always: the trace begins at what they make."""


@dataclass(frozen=True)
class Record:
    """What one row decided, for metrics and the audit log."""

    row: str
    code: str
    mode: Mode
    message: str

    @classmethod
    def of(cls, row: str, reason: Reason, mode: Mode) -> "Record":
        return cls(row, reason.code, mode, reason.message)


def apply_queue(
    patch: JsonPatch, workload: Workload, evaluation: Evaluation, policy: ConformancePolicy
) -> list[Record]:
    """K1: the queue label, unless the workload has one, in the modes annotate and enforce."""
    choice = evaluation.queue
    if choice.conforms and choice.source is not Source.LABEL and evaluation.queue_mode is not Mode.OBSERVE:
        write_queue(patch, policy.queues.framework, workload.kind, workload.pod_sets, choice.queue)
        patch.put(("metadata", "labels", QUEUE_SOURCE), str(choice.source))
    return [Record.of("queue", choice.reasons[0 if choice.conforms else -1], evaluation.queue_mode)]


def apply_scheduler(patch: JsonPatch, workload: Workload, evaluation: Evaluation) -> list[Record]:
    """K2: advice as an annotation in annotate; scheduler, gang marks and spread constraints in enforce."""
    choice, mode = evaluation.scheduler, evaluation.scheduler_mode
    if choice.placement is not Placement.AS_WRITTEN and mode is Mode.ANNOTATE:
        advice = choice.scheduler or f"spread over {','.join(choice.topology_keys)}"
        patch.put(("metadata", "annotations", SCHEDULER_ANNOTATION), advice)
    elif choice.placement is Placement.SPREAD and mode is Mode.ENFORCE:
        _spread(patch, workload, choice.topology_keys)
    elif choice.scheduler and mode is Mode.ENFORCE:
        if not _selectors_agree(workload, choice.node_selector):
            text_ = "Its node selector excludes the nodes of the scheduler that fits; it keeps the one it has."
            return [Record("scheduler", "SELECTOR", mode, text_)]
        _name_scheduler(patch, workload, evaluation)
    return [Record.of("scheduler", choice.reasons[0], mode)]


def apply_pools(
    patch: JsonPatch, workload: Workload, evaluation: Evaluation, policy: ConformancePolicy
) -> list[Record]:
    """K12: node affinity to the pools that the workload names, advice in annotate; see ``refused_pools``."""
    choice, mode = evaluation.pools, evaluation.pools_mode
    if choice is None:
        return []
    if choice.pools and mode is Mode.ANNOTATE:
        names = ",".join(pool.name for pool in choice.pools)
        patch.put(("metadata", "annotations", RECOMMENDED_POOLS_ANNOTATION), names)
    elif choice.pools and mode is Mode.ENFORCE:
        weights = {pool.name: weight for pool, weight in preference_weights(choice.pools)}
        write_pools(patch, workload.pod_sets, choice.pools, weights)
        if policy.queues.framework is Framework.KAI and len(choice.pools) == 1:
            write_kai_pool(patch, workload.pod_sets, choice.pools[0].name)
    return [Record.of("pools", choice.reasons[0], mode)]


def apply_hardware(patch: JsonPatch, workload: Workload, evaluation: Evaluation) -> list[Record]:
    """K21: required node affinity to the hardware that the workload names, where it asks for that, in enforce."""
    choice, mode = evaluation.hardware, evaluation.pools_mode
    if choice is None:
        return []
    if choice.labels and mode is Mode.ENFORCE:
        alternatives = [KaiwoPool(value, {key: value}) for key, value in choice.labels]
        write_pools(patch, workload.pod_sets, alternatives, {}, every=not workload.uses_gpus)
    return [Record.of("hardware", choice.reasons[0], mode)]


def refused_hardware(evaluation: Evaluation) -> Record | None:
    """Why a workload is refused for the hardware that it names; None where it is not."""
    choice = evaluation.hardware
    if choice is None or not choice.refused or evaluation.pools_mode is not Mode.ENFORCE:
        return None
    return Record.of("hardware", choice.reasons[-1], evaluation.pools_mode)


def refused_pools(evaluation: Evaluation) -> Record | None:
    """Why a workload is refused for the pools that it names; None where it is not."""
    choice = evaluation.pools
    if choice is None or not choice.refused or evaluation.pools_mode is not Mode.ENFORCE:
        return None
    return Record.of("pools", choice.reasons[-1], evaluation.pools_mode)


def apply_class(patch: JsonPatch, workload: Workload, evaluation: Evaluation) -> list[Record]:
    """K20: a class that is stated on the object is repeated on its templates, as others see the pods alone."""
    word, mode = stated_class(workload.document), evaluation.scheduler_mode
    if not word:
        return []
    class_ = workload.classified
    if class_.reasons[0].code == "CLASS_STATED" and mode is not Mode.OBSERVE:
        for pods in workload.pod_sets:
            # A pod is its own template.
            if pods.metadata not in (None, ("metadata",)) and not stated_class(
                {}, mapping(patch.document, *pods.metadata)
            ):
                patch.put((*pods.metadata, "labels", CLASS_KEY), str(class_.workload_class))
    return [Record.of("class", class_.reasons[0], mode)]


def apply_trace(
    patch: JsonPatch, review: Review, workload: Workload, policy: ConformancePolicy, arrived_with: str
) -> TraceContext | None:
    """O6: a trace context on the pods and Jobs (of any kind that ends) that are sampled; the trace of a pod's Job, or
    the API server's own, goes on. A Job's context stands in its templates as well, under a name of its own: a pod that
    is reviewed twice would else be taken for its own parent. What users have written there is taken away."""
    is_pod, is_made = workload.kind.resource == PODS, _made_by_job(review)
    paths = [pod_set.metadata for pod_set in workload.pod_sets if pod_set.metadata is not None]
    written = [path for path in paths if job_context_of(mapping(workload.document, *path)) is not None]
    if is_made and written and not is_pod:
        return None
    context, carried = None, parse_traceparent(workload.annotations.get(TRACEPARENT_ANNOTATION))
    if carried is None and not workload.kind.mutable and is_traced(review, policy, arrived_with):
        carried = context = new_context(_context_of_job(review) or parse_traceparent(arrived_with))
        patch.put(("metadata", "annotations", TRACEPARENT_ANNOTATION), str(context))
    if carried is not None and carried.sampled and not is_pod and not workload.kind.mutable:
        for path in paths:
            patch.put((*path, "annotations", JOB_TRACEPARENT_ANNOTATION), str(carried))
    elif not is_made:
        for path in written:
            patch.drop((*path, "annotations", JOB_TRACEPARENT_ANNOTATION))
    return context


def is_traced(review: Review, policy: ConformancePolicy, arrived_with: str) -> bool:
    """Whether a review is sampled, here, by the API server, or with the Job of its pod."""
    arrived, job = parse_traceparent(arrived_with), _context_of_job(review)
    if (arrived is not None and arrived.sampled) or (job is not None and job.sampled):
        return True
    if _made_by_job(review) or (review.group, review.kind) in _WITHOUT_TEMPLATES:
        return False  # All that an untraced Job makes is alike; without templates a trace would end here.
    return is_sampled(_together(review) or review.uid, policy.trace_per_mille)


def _context_of_job(review: Review) -> TraceContext | None:
    """The context that a pod has from the template of its Job; anybody may have written that of another pod."""
    return job_context_of(mapping(review.object, "metadata")) if _made_by_job(review) else None


def _made_by_job(review: Review) -> bool:
    """Whether something that ends, and has written its context into its templates if it is traced, has made it.
    RayClusters are made by RayJobs, mostly, and nothing shows which are not."""
    maker = BY_KEY.get(controller_of(review.object))
    if maker is None or maker.key in _WITHOUT_TEMPLATES:
        return False
    return not maker.mutable or maker.resource == RAY_CLUSTERS


def _together(review: Review) -> str:
    """What the pods of a gang, which are traced together, have in common; empty for anything else."""
    group = gang_name(mapping(review.object, "metadata")) if review.kind == "Pod" else ""
    return f"{review.namespace}/{group}" if group else ""


def warnings_of(workload: Workload, evaluation: Evaluation) -> tuple[str, ...]:
    """Warnings for the user; none of a row in the mode observe."""
    result: list[str] = []
    if evaluation.scheduler_mode is not Mode.OBSERVE and stated_class(workload.document):
        unknown = workload.classified.reasons[0]
        result += [unknown.message] if unknown.code == "CLASS_UNKNOWN" else []
    if evaluation.pools is not None and evaluation.pools_mode is not Mode.OBSERVE:
        result += [reason.message for reason in evaluation.pools.remarks]
    result += hardware_warnings(evaluation)
    return (*result, *_queue_warnings(workload, evaluation))


def hardware_warnings(evaluation: Evaluation) -> tuple[str, ...]:
    """Of the hardware that is named; none in the mode observe."""
    if evaluation.hardware is None or evaluation.pools_mode is Mode.OBSERVE:
        return ()
    return tuple(reason.message for reason in evaluation.hardware.remarks)


def _queue_warnings(workload: Workload, evaluation: Evaluation) -> tuple[str, ...]:
    result = [reason.message for reason in evaluation.queue.reasons if reason.code == "QUEUE_MISSING"]
    if workload.opts_out:
        result.append(
            f"{OPT_OUT_ANNOTATION} is not honoured: it needs the right to bypass conformancepolicies.kaiwo.ai"
        )
    if not evaluation.queue.conforms and evaluation.queue_mode is Mode.ANNOTATE:
        result.append(evaluation.queue.reasons[-1].message)
    return tuple(result)


def _name_scheduler(patch: JsonPatch, workload: Workload, evaluation: Evaluation) -> None:
    choice = evaluation.scheduler
    for pods in workload.pod_sets:
        if pods.spec is None:
            continue
        patch.put((*pods.spec, "schedulerName"), choice.scheduler)
        for key, value in choice.node_selector:
            patch.put((*pods.spec, "nodeSelector", key), value)
    if choice.gang is not None:
        write_gang(patch, choice.gang.framework, workload.kind, workload.pods)
        queue = choice.gang.queue or evaluation.queue.queue
        if queue:
            write_queue(patch, choice.gang.framework, workload.kind, workload.pod_sets, queue)


def _selectors_agree(workload: Workload, wanted: tuple[tuple[str, str], ...]) -> bool:
    """Whether no pod names another value for a label that the scheduler's nodes carry."""
    specs = [pod_set.spec for pod_set in workload.pod_sets if pod_set.spec is not None]
    return all(
        text(workload.document, *spec, "nodeSelector", key) in ("", value) for spec in specs for key, value in wanted
    )


def _spread(patch: JsonPatch, workload: Workload, keys: tuple[str, ...]) -> None:
    """Soft constraints over the replicas, which are found by the owner's own selector."""
    selector = mapping(workload.document, "spec", "selector")
    if not mapping(selector, "matchLabels"):
        return
    constraints = [
        {"maxSkew": 1, "topologyKey": key, "whenUnsatisfiable": "ScheduleAnyway", "labelSelector": dict(selector)}
        for key in keys
    ]
    for pods in workload.pod_sets:
        if pods.spec is not None:
            patch.put((*pods.spec, "topologySpreadConstraints"), constraints)
