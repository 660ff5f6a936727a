"""Jobs as the sizing controller reads and changes them."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from kopt.cluster.client.resources import Object
from kopt.cluster.holds.hold import holder_of, queue_of
from kopt.cluster.holds.original_request import FRACTION_ANNOTATION, with_request
from kopt.cluster.objects.annotations import AnnotationError, json_of
from kopt.cluster.objects.fields import at, count, has_condition, items, mapping, text, texts
from kopt.cluster.objects.namespace import MODE_ANNOTATION, NamespaceSettings
from kopt.cluster.workloads.jobs import is_changeable, pods_that
from kopt.cluster.workloads.node_selection import GPU_PRODUCT_LABELS, wanted_labels
from kopt.cluster.workloads.requests.gpus import FRACTION_ANNOTATIONS, memory_of, milli_of
from kopt.cluster.workloads.shares.executors import executor_for
from kopt.cluster.workloads.workload import OPT_OUT_ANNOTATION, read_workload
from kopt.controllers.sizing.pods import JobPod
from kopt.core.decision import Mode
from kopt.core.redaction import redact
from kopt.core.units import MIB, WHOLE_GPU, Bytes, MilliGpu, format_gpus
from kopt.core.untrusted import UnreadableError, number, whole, word
from kopt.core.workload.executor import Executor
from kopt.core.workload.profile import JobType
from kopt.core.workload.sizing import ShareKind
from kopt.formats.gpu_shares import SCHEDULERS, WHOLE_GPU_RESOURCE, share_patch
from kopt.policies.admission.mode import effective_mode
from kopt.policies.sizing.profiling import GpuShareRequest, JobSnapshot
from kopt.policies.sizing.profiling_pod import PROFILING_LABEL

HOLDER = "profiling"
STATE_ANNOTATION = "kaiwo.ai/sizing-state"
"""JSON on a Job that was held: since when, what it asked for itself, how often it ran out of memory."""
REASON_ANNOTATION = "kaiwo.ai/recommended-reason"
"""On a Job: why it has the request that it has."""
PROFILING_OPT_OUT = "kaiwo.ai/profiling"
"""``false`` keeps a Job from being held and profiled."""
_MOST_OBSERVED, _MOST_ATTEMPTS = 50, 1000
_PHASES = ("stop", "profile", "retry", "sized", "own")


@dataclass(frozen=True)
class State:
    """``phase``: ``stop`` while its queue, which had admitted it, is to stop it (``stopped``: and has), ``profile``
    while held for a dry run, ``retry`` while held for a new try, ``sized`` with a request of ours, ``own`` with the
    user's.
    ``asked`` is the user's own request as it has to be restored, ``type`` the digest of its job type: while it runs, a
    queue may have added to its node selector."""

    phase: str
    since_s: float
    asked: Mapping[str, Any]
    tries: int = 0
    granted_bytes: int = 0
    need_bytes: int = 0
    seen: tuple[str, ...] = ()
    type: str = ""
    stopped: bool = False

    def having_observed(self, pods: Iterable[str]) -> "State":
        """The state after these failed pods, which say nothing any more about the request that the Job has then."""
        return replace(self, seen=tuple(dict.fromkeys([*self.seen, *pods]))[-_MOST_OBSERVED:])

    def to_json(self) -> str:
        return json.dumps(asdict(self), separators=(",", ":"), sort_keys=True)


def read_state(job: Object) -> State | None:
    """None where there is none. Raises AnnotationError for one that cannot be read: users write annotations as well."""
    result = json_of(mapping(job, "metadata", "annotations"), STATE_ANNOTATION)
    if result is None:
        return None
    try:
        phase, request = word(result, "phase"), result.get("asked")
        if phase not in _PHASES or not isinstance(request, dict):
            raise UnreadableError("it has no valid phase, or no request")
        return State(
            phase,
            number(result, "since_s"),
            request,
            whole(result, "tries", high=_MOST_ATTEMPTS),
            whole(result, "granted_bytes"),
            whole(result, "need_bytes"),
            texts(result, "seen")[-_MOST_OBSERVED:],
            text(result, "type"),
            result.get("stopped") is True,
        )
    except UnreadableError as error:
        raise AnnotationError(STATE_ANNOTATION, error) from None


def state_of(job: Object) -> State | None:
    """None where there is none, or none that can be read."""
    try:
        return read_state(job)
    except AnnotationError:
        return None


def gpu_container(job: Object) -> tuple[int, str] | None:
    """The first container that asks for GPUs, and the resource by which; None for a Job without."""
    for index, container in items(job, "spec", "template", "spec", "containers"):
        for part in ("limits", "requests"):
            for name, amount in items(container, "resources", part):
                if milli_of(str(name), amount):
                    return int(index), str(name)
    return None


def gpus_per_pod(job: Object) -> MilliGpu:
    """Milli-GPU that the containers of one pod ask for."""
    total = 0
    for _, container in items(job, "spec", "template", "spec", "containers"):
        limits = sum(milli_of(str(name), amount) for name, amount in items(container, "resources", "limits"))
        total += limits or sum(
            milli_of(str(name), amount) for name, amount in items(container, "resources", "requests")
        )
    return MilliGpu(total)


def pods_of(job: Object) -> int:
    parallel = count(job, "spec", "parallelism")
    return min(parallel, count(job, "spec", "completions", default=parallel))


def snapshot_of(
    job: Object,
    namespace: NamespaceSettings,
    default: Mode,
    workload_may_lower: bool | None = None,
    executor: Executor = Executor.UNKNOWN,
) -> JobSnapshot:
    """The policy's input, in a cluster where ``executor`` hands out shares of a GPU."""
    annotations = mapping(job, "metadata", "annotations")
    template_annotations = mapping(job, "spec", "template", "metadata", "annotations")
    result, holder = gpu_container(job), holder_of(job)
    sized = state_of(job) is not None
    status = mapping(job, "status")
    ran = any(count(status, name, default=0) for name in ("ready", "succeeded", "failed"))
    return JobSnapshot(
        mode=effective_mode(annotations.get(MODE_ANNOTATION), namespace.mode, default, workload_may_lower),
        managed=namespace.managed,
        gpus=gpus_per_pod(job),
        resource=result[1] if result else "",
        pods=pods_of(job),
        opted_out=_opts_out(job),
        has_command=bool(texts(job, "spec", "template", "spec", "containers", result[0] if result else 0, "command")),
        states_size=not sized
        and any(
            memory_of(written) or any(name in written for name in FRACTION_ANNOTATIONS)
            for written in (annotations, template_annotations)
        ),
        queued=bool(queue_of(job)),
        admitted=bool(queue_of(job)) and at(job, "spec", "suspend") is not True,
        started=ran,
        stopped=at(job, "spec", "suspend") is True and not holder and not queue_of(job),
        finished=is_finished(job) or at(job, "metadata", "deletionTimestamp") is not None,
        held_by_others=holder not in ("", HOLDER),
        retriable=_retriable(job),
        executor=_executor(job, executor),
    )


def job_type_of(job: Object) -> JobType | None:
    """None for a Job whose command is not known outside of its image."""
    result = gpu_container(job)
    if result is None:
        return None
    container = at(job, "spec", "template", "spec", "containers", result[0])
    command = texts(container, "command")
    if not command:
        return None
    world = max(1, pods_of(job) * max(1, gpus_per_pod(job) // WHOLE_GPU))
    gpus = ",".join(sorted(wanted_labels(pod_of(job), GPU_PRODUCT_LABELS)))
    return JobType(text(container, "image"), command + texts(container, "args"), gpus, world)


def original_request_of(state: State) -> dict[str, Any]:
    """The user's own request, with the retries that tries of ours have used up on top."""
    own = state.asked.get("backoff_limit")
    limit = own if isinstance(own, int) and not isinstance(own, bool) else 6
    return {**state.asked, "backoff_limit": limit + state.tries}


def restored(job: Object, state: State) -> Object:
    """The change of ``spec`` that gives a Job its own request back."""
    return with_request(job, original_request_of(state))


def pod_of(job: Object) -> Object:
    """The spec of its pods."""
    return dict(mapping(job, "spec", "template", "spec"))


def as_written(job: Object) -> Object:
    """The Job as its user wrote it, whatever it asks for now."""
    state = state_of(job)
    if state is None:
        return job
    changed = restored(job, state)["template"]["spec"]
    template = job["spec"]["template"]
    return job | {"spec": job["spec"] | {"template": template | {"spec": template["spec"] | changed}}}


def asking(job: Object, state: State, request: GpuShareRequest, retries: int) -> Object:
    """The change of ``spec`` that makes a Job ask for what the policy says. Its own resource gives way to a partition,
    or to the annotation of a fraction; tries that run out of memory come on top of the user's own retries."""
    spec = restored(job, state)
    if request.kind is ShareKind.WHOLE:
        return spec
    spec["backoffLimit"] += retries - state.tries
    result = gpu_container({"spec": {"template": spec["template"]}})
    if result is None:
        return spec
    container = spec["template"]["spec"]["containers"][result[0]]
    for part in ("limits", "requests"):
        amounts = (container.get("resources") or {}).get(part) or {}
        if amounts.pop(result[1], None) is not None and request.kind is ShareKind.PARTITION:
            amounts[request.resource] = "1"
    if request.kind is ShareKind.FRACTION:
        wanted = share_patch(request.executor, request.bytes // MIB)
        limits = {name: amount for name, amount in wanted["resources"]["limits"].items() if amount is not None}
        container["resources"] = {**container["resources"], "limits": container["resources"].get("limits", {}) | limits}
        spec["template"]["metadata"]["annotations"] |= {
            FRACTION_ANNOTATION: format_gpus(request.milli_gpu),
            **mapping(wanted, "metadata", "annotations"),
        }
    return spec


def annotations_of(request: GpuShareRequest, state: State) -> dict[str, str]:
    """Annotations that tell people, and this controller after a restart, what was decided."""
    result = {STATE_ANNOTATION: state.to_json(), REASON_ANNOTATION: redact(request.reason.message)}
    if request.bytes:
        result["kaiwo.ai/recommended-memory"] = str(-(-request.bytes // MIB))
    return result


def granted(state: State, request: GpuShareRequest, need_bytes: int) -> State:
    """The state of a Job that now has what ``request`` says."""
    phase = "own" if request.kind is ShareKind.WHOLE else "sized"
    return replace(state, phase=phase, granted_bytes=int(request.bytes), need_bytes=need_bytes)


def is_finished(job: Object) -> bool:
    return has_condition(job, "Complete", "Failed")


def is_untouched(job: Object, pods: Sequence[JobPod]) -> bool:
    """Whether all pods of a Job are seen, and no container of any has begun."""
    return len(pods) >= pods_that(job, "active") and not any(pod.begun for pod in pods)


def is_at_rest(job: Object) -> bool:
    """Whether no pod of a stopped Job is left either that could still write what its next one reads."""
    return is_changeable(job) and not pods_that(job, "terminating")


def _executor(job: Object, executor: Executor) -> Executor:
    """What would hand a Job a share of a GPU: a Job's scheduler cannot be changed any more, and of its containers the
    first has the share that KAI hands out."""
    metadata, container = mapping(job, "metadata"), gpu_container(job)
    workload = read_workload(job, "batch", "Job", text(metadata, "namespace"), text(metadata, "name"))
    if workload is None or container is None or container[1] != WHOLE_GPU_RESOURCE or len(workload.pod_sets) != 1:
        return Executor.NONE
    result = executor_for(executor, job, workload, workload.pod_sets[0])
    if result in (Executor.KAI, Executor.VOLCANO):
        scheduler = text(job, "spec", "template", "spec", "schedulerName")
        is_set = scheduler == SCHEDULERS[result] and (result is Executor.VOLCANO or container[0] == 0)
        return result if is_set else Executor.NONE
    return result


def _opts_out(job: Object) -> bool:
    """By annotation; and a dry run needs none itself."""
    annotations = mapping(job, "metadata", "annotations")
    says_so = annotations.get(OPT_OUT_ANNOTATION) == "true" or annotations.get(PROFILING_OPT_OUT) == "false"
    return says_so or PROFILING_LABEL in mapping(job, "metadata", "labels")


def _retriable(job: Object) -> bool:
    """Whether a failed pod is followed by another: a failure policy of the user's may say otherwise."""
    rules = items(job, "spec", "podFailurePolicy", "rules")
    per_index = at(job, "spec", "backoffLimitPerIndex") is not None
    return not per_index and not any(text(rule, "action") in ("FailJob", "FailIndex") for _, rule in rules)


def granted_of(state: State) -> Bytes:
    return Bytes(max(0, state.granted_bytes))
